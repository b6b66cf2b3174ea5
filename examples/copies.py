"""Check whether any model's pictures copy its training set.

Usage: python copies.py [PICTURES.npy TRAINING_SET]     pictures (n, C, H, W) in [-1, 1]
"""

import sys

import numpy as np
import torch

import golddiff


def main(pictures=None, training_set="digits"):
    """Count copies, and print the five pictures with the least novelty."""
    store = golddiff.load(training_set)
    if pictures is None:  # an example: three training images and five new pictures
        new = golddiff.sample(golddiff.recommended(store, novelty=1), n=5, seed=0).images
        images = torch.cat([store.images([3, 4, 5]), new])
    else:
        images = torch.from_numpy(np.load(pictures)).float()
    found = golddiff.novelty(images, store)
    print(f"copies of training images: {int(found.copies.sum())} of {len(images)}")
    for i in found.novelty.argsort()[:5].tolist():
        print(f"picture {i}: novelty {found.novelty[i]:.2f}, nearest to image {found.nearest[i]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
