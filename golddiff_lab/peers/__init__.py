"""Peers: other implementations, run from a checkout that the user supplies.

Each adapter module has ``check(spec, store)``, which raises ArgumentError if the peer cannot run
over the store, and ``make(spec, store)``, which creates its step. A peer's code is imported only in
the process of its side.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore
    from golddiff_lab.sides import SideSpec, Step


@dataclass(frozen=True)
class Peer:
    """A peer and how to recognise its checkout.

    Attributes:
        title: name and authors of the code.
        file: a file of its checkout; None for an installed package.
        mark: text in that file by which it is recognised.
        module: the adapter module.
        base: our method whose full scan its error refers to.
        vp_levels: whether it runs only at the noise levels of the 1,000 VP timesteps.
    """

    title: str
    file: str | None
    mark: str
    module: str
    base: str
    vp_levels: bool = False

    def check(self, spec: SideSpec, store: ImageStore) -> None:
        """Raise ArgumentError if the peer cannot run over the store; does not import its code."""
        import_module(self.module).check(spec, store)

    def make(self, spec: SideSpec, store: ImageStore) -> Step:
        """A step of the peer, once :meth:`check` has passed; imports its code."""
        self.check(spec, store)
        return import_module(self.module).make(spec, store)


PEERS = {
    "release": Peer(
        "the authors' release (shangxinyi/GoldDiff)",
        "methods/ours.py", "class OursDenoiser", "golddiff_lab.peers.release", "pca", True,
    ),
    "studio": Peer(
        "Lukoianov et al.'s PCA (analytic-diffusion/analytic-diffusion-studio)",
        "src/local_diffusion/models/pca_locality.py", "class PCALocalityDenoiser",
        "golddiff_lab.peers.studio", "pca", True,
    ),
    "kamb-ganguli": Peer(
        "Kamb & Ganguli (convolutional_diffusion)",
        "src/utils/idealscore.py", "class LocalEquivBordersScoreModule",
        "golddiff_lab.peers.kamb", "kamb",
    ),
    "pspc": Peer(
        "Niedoba et al.'s PSPC-Square (plai-group/pspc)",
        "pspc/denoisers.py", "class PSPCSquareDenoiser", "golddiff_lab.peers.pspc", "pspc-square",
    ),
    "faiss": Peer("FAISS (faiss-cpu)", None, "", "golddiff_lab.peers.faiss_flat", "optimal"),
}  # fmt: skip


def recognise(text: str) -> tuple[str, Path | None]:
    """Name and checkout folder of a peer: the folder is recognised by its files; or "faiss"."""
    if text == "faiss":
        return "faiss", None
    folder = Path(text).expanduser()
    for name, peer in PEERS.items():
        if peer.file is None:
            continue
        file = folder / peer.file
        if file.is_file() and peer.mark in file.read_text("utf-8", errors="replace"):
            return name, folder.resolve()
    known = "; ".join(f"{p.title} with {p.file}" for p in PEERS.values() if p.file is not None)
    missing = "" if folder.is_dir() else ", which is not a folder"
    raise ArgumentError(f"peer: got {text}{missing}; expected a checkout of {known}; or 'faiss'")
