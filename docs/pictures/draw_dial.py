"""Draw the README's picture: ``python docs/pictures/draw_dial.py SOURCE NAME OUT.png [SEED]``.

SOURCE is a store, or what ``golddiff index`` reads; NAME what the picture calls it. The one in the
README is of 10,000 images of Fashion-MNIST (MIT licence), seed 5.
"""

from __future__ import annotations

import sys
from pathlib import Path

from golddiff import load
from golddiff.system.pictures import save
from golddiff_lab.cli.demo import draw_novelties


def main(source: str, name: str, out: str, seed: str = "0") -> None:
    """Draw the dial of a training set."""
    save("out", draw_novelties(load(source), int(seed), name=name), Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:])
