"""Where an output comes from: the training images of the whole output, and of one pixel.

Usage: python sources.py [FOLDER [SIZE]]     writes sources.png
"""

import sys

import torch

import golddiff
from golddiff.system.pictures import draw_grid


def main(source="digits", size=None):
    """Draw one output and the five training images with the largest weights."""
    store = golddiff.load(source, size=size and int(size))
    denoiser = golddiff.recommended(store)
    run = golddiff.sample(denoiser, n=1, seed=0, attribution=True)
    (found,) = run.attribution
    rows, weights = found.top_images(5)
    for row, weight in zip(rows, weights, strict=True):
        print(f"training image {row:6}: {weight:.1%} of the output")

    x = run.images + 0.3 * run.x_init  # the output with a little noise
    middle = (store.shape[1] // 2, store.shape[2] // 2)
    pixel = golddiff.pixel_sources(denoiser, x, 0.3, *middle)
    print(f"its middle pixel at sigma 0.3: {pixel.effective:.1f} images count")
    draw_grid(torch.cat([run.images, store.images(rows)]), columns=6).save("sources.png")


if __name__ == "__main__":
    main(*sys.argv[1:])
