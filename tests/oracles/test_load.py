import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from golddiff import CheckpointError, load_oracle
from golddiff.oracles import load
from golddiff.oracles.unet import TABLE
from golddiff.system.errors import ArgumentError
from golddiff_lab.training.writing import describe_network, write_folder, write_weights
from tests.oracles import direct


@pytest.fixture
def x():
    return torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(3))


def expected(network, x, sigma, timestep):
    """x0 by the direct computation at a whole timestep."""
    config = network.config
    t = torch.full((len(x),), timestep)
    x_t = x.double() / (1 + sigma**2) ** 0.5
    labels = torch.full((len(x),), config.classes) if config.classes else None
    eps = direct.eps(
        network.state_dict(), x_t, t, labels,
        multipliers=config.multipliers, blocks=config.blocks,
    )  # fmt: skip
    return (x.double() - sigma * eps).float()


def sigma_of(oracle, timestep):
    return float(oracle.schedule.sigmas[timestep])


def test_safetensors_header_that_begins_like_a_pickle(make_unet, tmp_path):
    network, path = make_unet((1,)), tmp_path / "a.safetensors"
    description = describe(network)
    for length in range(0, 256, 8):
        # safetensors pads headers to a multiple of 8, so one of these lengths ends in 0x80.
        description["training"]["data"] = "x" * length
        write_weights(path, network, description)
        if path.read_bytes()[0] == 0x80:
            break
    assert path.read_bytes()[0] == 0x80
    assert load_oracle(path).shape == (1, 28, 28)


def describe(network, side=28):
    training = {"data": "test", "steps": 3, "minutes": 0.1, "loss": [[3, 0.5]], "command": None}
    return describe_network(network.config, side, True, training)


@pytest.mark.parametrize("wrapped", [True, False])
@pytest.mark.parametrize("zipped", [True, False])
def test_published_checkpoint(make_unet, tmp_path, x, wrapped, zipped):
    network = make_unet((1, 2, 2))
    state = network.state_dict()
    content = {"epoch": 200, "model_state_dict": state, "loss": 0.02} if wrapped else state
    path = tmp_path / "ckpt_epoch_200.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    oracle = load_oracle(path)
    assert oracle.shape == (1, 28, 28)
    assert oracle.num_classes == 0
    sigma = sigma_of(oracle, 400)
    torch.testing.assert_close(
        oracle(x, sigma), expected(network, x, sigma, 400), atol=1e-3, rtol=0
    )


@pytest.mark.parametrize(
    ("folder", "resolution", "side"),
    [("cifar10", None, 32), ("afhq", None, 64), ("celeba_hq", None, 64), ("cifar10", 16, 16)],
)
def test_side_of_a_published_checkpoint(make_unet, tmp_path, folder, resolution, side):
    (tmp_path / folder).mkdir()
    path = tmp_path / folder / "ckpt_epoch_200.pt"
    torch.save({"model_state_dict": make_unet((1, 1, 2, 2), 3).state_dict()}, path)
    assert load_oracle(path, resolution=resolution).shape == (3, side, side)
    with pytest.raises(ArgumentError, match="resolution: got 30, expected a multiple of 8"):
        load_oracle(path, resolution=30)


def test_golddiff_folder_and_half_precision_file(make_unet, tmp_path, x):
    network = make_unet((1, 2, 2), classes=5)
    write_folder(tmp_path / "run", network, describe(network))
    write_weights(tmp_path / "a.bin", network, describe(network), torch.float16)
    whole, half = load_oracle(tmp_path / "run"), load_oracle(tmp_path / "a.bin")
    assert whole.num_classes == half.num_classes == 5
    sigma = sigma_of(whole, 400)
    torch.testing.assert_close(whole(x, sigma), expected(network, x, sigma, 400), atol=1e-3, rtol=0)
    assert all(p.dtype == torch.float32 for p in half.network.parameters())
    for name, value in half.network.state_dict().items():
        torch.testing.assert_close(value, network.state_dict()[name], atol=2e-3, rtol=1e-3)
    assert torch.equal(half.network.state_dict()[TABLE], network.state_dict()[TABLE])
    assert TABLE not in load_file(tmp_path / "a.bin")


def test_weights_that_half_precision_cannot_hold_are_not_written(make_unet, tmp_path):
    network = make_unet()
    with torch.no_grad():
        network.head.weight[0] = 1e6
    with pytest.raises(ArgumentError, match=r"dtype: head\.weight"):
        write_weights(tmp_path / "a.safetensors", network, describe(network), torch.float16)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def diffusers_unet():
    from diffusers import UNet2DModel

    torch.manual_seed(0)
    return UNet2DModel(
        sample_size=8, in_channels=1, out_channels=1, layers_per_block=1, norm_num_groups=8,
        block_out_channels=(8, 16), down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"), num_class_embeds=3,
    ).eval()  # fmt: skip


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("prediction", [None, "epsilon", "v_prediction", "sample"])
def test_diffusers_model(diffusers_unet, tmp_path, monkeypatch, safe, prediction):
    from diffusers import DDPMScheduler

    home = tmp_path / "unet"
    diffusers_unet.save_pretrained(home, safe_serialization=safe)
    scheduler = DDPMScheduler(prediction_type=prediction or "epsilon")
    if prediction is not None:
        scheduler.save_pretrained(tmp_path / "scheduler")
    oracle = load_oracle(tmp_path)
    assert oracle.shape == (1, 8, 8)
    x = torch.randn(2, 1, 8, 8)
    alpha = scheduler.alphas_cumprod[300]
    sigma = float(((1 - alpha) / alpha).sqrt())
    x_t = alpha.sqrt() * x
    with torch.no_grad():
        out = diffusers_unet(x_t, 300, class_labels=torch.tensor([1, 1])).sample
    x0 = scheduler_x0(scheduler, out, x_t)
    torch.testing.assert_close(oracle(x, sigma, 1), x0, atol=1e-4, rtol=1e-4)
    with pytest.raises(ArgumentError, match="labels: this network takes a class"):
        oracle(x, sigma)
    assert load_oracle(home).kind == oracle.kind
    monkeypatch.chdir(home)
    assert load_oracle(".").kind == oracle.kind


@pytest.mark.parametrize("prediction", [["epsilon"], {"epsilon": 1}, None, "velocity"])
def test_unknown_diffusers_prediction_type_is_named(diffusers_unet, tmp_path, prediction):
    from diffusers import DDPMScheduler

    diffusers_unet.save_pretrained(tmp_path)
    DDPMScheduler().save_pretrained(tmp_path)
    path = tmp_path / "scheduler_config.json"
    config = json.loads(path.read_text()) | {"prediction_type": prediction}
    path.write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"prediction_type is .*expected one of epsilon"):
        load_oracle(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sample_size": 9}, "UNet2DModel cannot run: Sizes of tensors must match"),
        ({"class_embed_type": "identity", "num_class_embeds": None}, "cannot run: class_labels"),
        ({"freq_shift": "a"}, "cannot run: unsupported operand"),
        ({"time_embedding_type": "learned"}, "time_embedding_type is 'learned', expected 'posi"),
    ],
)
def test_a_diffusers_network_that_cannot_run_is_refused(diffusers_unet, tmp_path, change, message):
    unet = type(diffusers_unet).from_config({**diffusers_unet.config, "num_class_embeds": None})
    unet.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(CheckpointError, match=message):
        load_oracle(tmp_path)


def scheduler_x0(scheduler, out, x_t):
    """x0 as the scheduler computes it from a network output."""
    scheduler.register_to_config(clip_sample=False)
    return scheduler.step(out, 300, x_t).pred_original_sample


def test_edm_pickles_are_read_by_load_edm(tmp_path, monkeypatch):
    path = tmp_path / "edm.pkl"
    path.write_bytes(b"\x80\x03}q\x00.")
    calls = []

    def load_edm(path):
        calls.append(path)
        return {"module": torch.nn.Identity(), "shape": (3, 32, 32)}

    monkeypatch.setattr(load, "load_edm", load_edm)
    opened = load_oracle(path, batch_size=7)
    assert (opened.shape, opened.batch_size, str(opened.device)) == ((3, 32, 32), 7, "cpu")
    assert calls == [path]
    with pytest.raises(ArgumentError, match="resolution: got 64"):
        load_oracle(path, resolution=64)


class Foreign:
    def __init__(self):
        self.ran = True


def test_foreign_classes_are_refused(tmp_path):
    torch.save({"model_state_dict": {}, "args": Foreign()}, tmp_path / "a.pt")
    with pytest.raises(CheckpointError, match=r"asks for .*Foreign"):
        load_oracle(tmp_path / "a.pt")


def damaged(state):
    """Damaged variants of a published state dict, and the error messages."""
    names = sorted(state)
    yield {n: v for n, v in state.items() if n != "tail.2.bias"}, r"lacks tail\.2\.bias"
    yield {**state, "extra": torch.zeros(1)}, "has unexpected extra"
    yield {**state, "tail.2.bias": torch.zeros(7)}, r"wrong shapes: tail\.2\.bias \(7,\) instead"
    yield {n: state[n] for n in names if "middleblocks" not in n}, r"lacks 30 names: .*, \.\.\.$"
    yield {**state, "tail.2.bias": torch.full((1,), torch.nan)}, r"tail\.2\.bias holds NaN"
    yield {**state, TABLE: torch.zeros(1000, 32)}, "timestep table"
    yield {**state, TABLE: torch.zeros(10, 32)}, "wrong shapes"
    yield {"weight": torch.zeros(3)}, "no attention-free DDPM U-Net; it has weight"
    yield {}, "it has nothing"
    yield {**state, "head.weight": torch.zeros(48, 1, 3, 3)}, "no attention-free|architecture"
    yield {**state, "epoch": 3}, r"epoch are not tensors"
    yield [1, 2], "holds a list"


def test_weights_that_do_not_fit_are_named(make_unet, tmp_path):
    path = tmp_path / "a.pt"
    for state, message in damaged(make_unet((1, 2, 2)).state_dict()):
        torch.save(state, path)
        with pytest.raises(CheckpointError, match=message) as caught:
            load_oracle(path)
        assert str(path) in str(caught.value)


def test_truncated_files_are_named(make_unet, tmp_path):
    network = make_unet()
    torch.save(network.state_dict(), tmp_path / "a.pt")
    write_weights(tmp_path / "b.safetensors", network, describe(network))
    for path in list(tmp_path.iterdir()):
        data = path.read_bytes()
        for keep in (0, 4, 12, 100, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:keep])
            with pytest.raises(CheckpointError, match=path.name):
                load_oracle(path)


def test_paths_without_a_checkpoint_are_refused(tmp_path):
    (tmp_path / "page.pt").write_text("<html>404</html>")
    (tmp_path / "config.json").write_text("[1]")
    for path, message in (
        (tmp_path / "none.pt", "does not exist"),
        (tmp_path / "page.pt", "is no network: it is a page of text"),
        (tmp_path, "holds a list"),
    ):
        with pytest.raises(CheckpointError, match=message):
            load_oracle(path)
    (tmp_path / "config.json").write_text(json.dumps({"_class_name": "UNet2DConditionModel"}))
    with pytest.raises(CheckpointError, match="UNet2DConditionModel"):
        load_oracle(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="no folder of a known network"):
        load_oracle(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "expected"),
        ({"resolution": 27}, "resolution is 27"),
        ({"network": {"channels": 10**9, "multipliers": [1]}}, "channels"),
        ({"network": {"channels": 32}}, "damaged"),
        ({"training": None}, "how it was trained"),
    ],
)
def test_damaged_descriptions_are_refused(make_unet, tmp_path, change, message):
    network = make_unet((1, 2, 2))
    path = tmp_path / "a.safetensors"
    write_weights(path, network, {**describe(network), **change})
    with pytest.raises(CheckpointError, match=message):
        load_oracle(path)
    save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(CheckpointError, match="without a description"):
        load_oracle(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"device": d}, f"device: got '{d}', which is not available")
            for d in ("nowhere", "cuda:99")
        ),
        *(({"batch_size": size}, f"batch_size: got {size}") for size in (0, -1, 1.5, True)),
        ({"resolution": 32}, "resolution: got 32, but .* 28 x 28"),
        ({"resolution": "28"}, "resolution: got '28', expected an integer"),
    ],
)
def test_bad_options_are_named(make_unet, tmp_path, options, message):
    network = make_unet((1, 2, 2))
    write_weights(tmp_path / "a.safetensors", network, describe(network))
    with pytest.raises(ArgumentError, match=message):
        load_oracle(tmp_path / "a.safetensors", **options)


@pytest.mark.parametrize("option", [{"use_flow_sigmas": True}, {"snr_shift_scale": 3.0}])
def test_a_scheduler_whose_timesteps_are_not_those_of_its_betas_is_named(
    diffusers_unet, tmp_path, option
):
    from diffusers import DDIMScheduler

    diffusers_unet.save_pretrained(tmp_path)
    DDIMScheduler().save_pretrained(tmp_path)
    path = tmp_path / "scheduler_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | option))
    with pytest.raises(CheckpointError, match=f"is no VP schedule: .*{next(iter(option))}"):
        load_oracle(tmp_path)
