"""Targets for readers of trained networks and training states."""

from __future__ import annotations

import functools
import io
import tempfile
from pathlib import Path
from typing import Any

import torch

from golddiff.oracles.load import load_oracle
from golddiff.oracles.unet import UNet, UNetConfig
from golddiff.store.images import ImageStore
from golddiff_lab.training.run import STATE, fingerprint, read_state, save, start
from golddiff_lab.training.settings import TrainSettings
from golddiff_lab.training.train import Examples, train_step
from golddiff_lab.training.writing import describe_network, write_weights
from reliability.fuzz.bundle import bundle, unbundle
from reliability.fuzz.images import array
from reliability.fuzz.mutate import flip
from reliability.fuzz.structured import json_values, safetensors_header, zip_members
from reliability.fuzz.target import MEGABYTE, Target
from tests.oracles.edm.make import SMALLEST, make_network, pickled

TINY = UNetConfig(4, (1, 2), 1, 1, groups=1)
# Loading holds the weights twice, and the initial values of the network take more memory.
LIMITS: dict[str, Any] = {"floor": 192 * MEGABYTE, "multiple": 40}


def targets() -> list[Target]:
    """All targets of this module."""
    return [
        Target("own network", own, _load("model.safetensors"), (safetensors_header,), **LIMITS),
        Target("published network", published, _load("ckpt.pt"), (zip_members,), **LIMITS),
        Target("EDM pickle", edm, _load("network.pkl"), **LIMITS),
        Target(
            "diffusers network",
            diffusers,
            _diffusers,
            general=False,
            mutations=(_mutate_files,),
            **LIMITS,
        ),
        Target("training state", states, _state, (zip_members,), **LIMITS),
    ]


def _load(name: str) -> Any:
    def read(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        load_oracle(folder / name)

    return read


@functools.cache
def own() -> list[bytes]:
    """Networks in golddiff's format, in float32 and float16."""
    files = []
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (torch.float32, torch.float16):
            path = Path(folder) / "model.safetensors"
            description = describe_network(TINY, 4, True, {"data": "noise"})
            write_weights(path, UNet(TINY), description, dtype)
            files.append(path.read_bytes())
    return files


@functools.cache
def published() -> list[bytes]:
    """Checkpoints of torch.save, in its zip and older formats."""
    files = []
    torch.manual_seed(0)
    config = UNetConfig(32, (1,), 1, 1)
    state = UNet(config).state_dict()
    for content in (state, {"model_state_dict": state, "epoch": 3}):
        for zipped in (True, False):
            out = io.BytesIO()
            torch.save(content, out, _use_new_zipfile_serialization=zipped)
            files.append(out.getvalue())
    return files


@functools.cache
def edm() -> list[bytes]:
    """EDM pickles of a network with one level."""
    network = make_network(side=2, channels=1, **SMALLEST)
    return [pickled(network, protocol=protocol) for protocol in (4, 2)]


@functools.cache
def diffusers() -> list[bytes]:
    """Bundles of a diffusers folder, with weights in safetensors and in torch format."""
    from diffusers import DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    model = UNet2DModel(
        sample_size=4,
        in_channels=1,
        out_channels=1,
        block_out_channels=(4,),
        down_block_types=("DownBlock2D",),
        up_block_types=("UpBlock2D",),
        layers_per_block=1,
        norm_num_groups=1,
        add_attention=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        DDPMScheduler().save_pretrained(folder)
        files = {p.name: p.read_bytes() for p in sorted(Path(folder).iterdir())}
    out = io.BytesIO()
    torch.save(model.state_dict(), out)
    weights = "diffusion_pytorch_model"
    others = {name: body for name, body in files.items() if not name.startswith(weights)}
    return [bundle(files), bundle(others | {f"{weights}.bin": out.getvalue()})]


def _mutate_files(rng: Any, data: bytes) -> bytes:
    files = unbundle(data)
    name = rng.choice(sorted(files))
    if name.endswith(".json"):
        files[name] = (
            json_values(rng, files[name]) if rng.random() < 0.9 else flip(rng, files[name])
        )
    elif name.endswith(".bin"):
        files[name] = zip_members(rng, files[name])
    else:
        files[name] = safetensors_header(rng, files[name])
    return bundle(files)


def _diffusers(data: bytes, folder: Path) -> None:
    for name, body in unbundle(data).items():
        (folder / name).write_bytes(body)
    load_oracle(folder)


SETTINGS = TrainSettings(
    channels=4, multipliers=(1,), blocks=1, steps=3, batch=2, minutes=None, groups=1
)


@functools.cache
def _store() -> ImageStore:
    folder = tempfile.mkdtemp(prefix="golddiff-fuzz-")
    return ImageStore.build(array(0, (6, 4, 4)), Path(folder) / "store")


@functools.cache
def states() -> list[bytes]:
    """The state of a training run after one step."""
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng([]):
        run = start(_store(), Path(folder), SETTINGS)
        run.record(*train_step(run, Examples(_store(), "cpu"), run.network), 0.1)
        save(run, _store(), Path(folder))
        return [(Path(folder) / STATE).read_bytes()]


def _state(data: bytes, folder: Path) -> None:
    (folder / STATE).write_bytes(data)
    with torch.random.fork_rng([]):
        run = start(_store(), folder / "none", SETTINGS)
        read_state(folder, run, fingerprint(_store()))
