"""Does a model copy its training set? Any model's pictures, as an array in [-1, 1].

Usage: python copies.py [PICTURES.npy TRAINING_SET]
"""

import sys

import numpy as np
import torch

import golddiff


def main(pictures=None, training_set="digits"):
    """Count copies, and print the pictures that are nearest to a training image."""
    store = golddiff.load(training_set)
    if pictures is None:  # an example: three training images, five new ones
        new = golddiff.sample(golddiff.recommended(store), n=5, seed=0).images
        images = torch.cat([store.images([3, 4, 5]), new])
    else:
        images = torch.from_numpy(np.load(pictures)).float()
    found = golddiff.novelty(images, store)
    print(f"{int(found.copies.sum())} of {len(images)} copy a training image")
    for i in found.novelty.argsort()[:5].tolist():
        print(f"picture {i}: novelty {found.novelty[i]:.2f}, nearest to image {found.nearest[i]}")


if __name__ == "__main__":
    main(*sys.argv[1:])
