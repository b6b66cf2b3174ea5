"""Peers: other people's code, run from a checkout of theirs that the user gives.

Each adapter is a file of its own, with ``check(spec, store)``, which refuses what the peer cannot
run over, and ``make(spec, store)``, which makes a side of a race from it. Nothing of a peer is
imported before a race, and only in the process of that side.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore
    from golddiff_lab.sides import Side, SideSpec


@dataclass(frozen=True)
class Peer:
    """A peer and how to know it.

    Attributes:
        title: whose code it is.
        file: a file of its checkout, or None where it is an installed package.
        mark: text in that file that no other's has.
        module: the adapter.
        base: our method whose full scan its error is taken to.
        vp_levels: whether it runs at the noise levels of 1,000 VP timesteps only.
    """

    title: str
    file: str | None
    mark: str
    module: str
    base: str
    vp_levels: bool = False

    def check(self, spec: SideSpec, store: ImageStore) -> None:
        """Raise ArgumentError where the peer cannot run over a store, or so; imports no peer."""
        import_module(self.module).check(spec, store)

    def make(self, spec: SideSpec, store: ImageStore) -> Side:
        """A side of a race; imports the peer's code.

        Raises:
            ArgumentError: as :meth:`check`; its code cannot be imported.
        """
        self.check(spec, store)
        side: Side = import_module(self.module).make(spec, store)
        return side


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
    """Which peer ``--peer`` names: (name, checkout).

    Args:
        text: folder of a checkout, known by its content; or "faiss".

    Raises:
        ArgumentError: no such folder, or none of the peers known.
    """
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
    missing = "" if folder.is_dir() else ", which is no folder"
    raise ArgumentError(f"peer: got {text}{missing}; expected a checkout of {known}; or 'faiss'")
