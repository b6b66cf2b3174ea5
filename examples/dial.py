"""The novelty dial: from copies of your pictures to new ones, with the same noise.

Usage: python dial.py [FOLDER [SIZE]]     writes dial.png
"""

import sys

import torch

import golddiff
from golddiff.system.pictures import draw_grid


def main(source="digits", size=None):
    """Draw four rows of eight pictures, one row for each novelty."""
    store = golddiff.load(source, size=size and int(size))
    rows = []
    for asked in (0.0, 0.3, 0.7, 1.0):
        run = golddiff.sample(golddiff.recommended(store, asked), n=8, seed=0)
        print(f"asked for {asked:.1f}: novelty {run.novelty.novelty.mean():.2f}, "
              f"{int(run.novelty.copies.sum())} copies of 8")  # fmt: skip
        rows.append(run.images)
    draw_grid(torch.cat(rows), columns=8).save("dial.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
