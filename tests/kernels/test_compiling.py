"""Compiling takes seconds, so each loop is compiled once for each data type of images."""

import golddiff
from golddiff.kernels.pca_cpu import _masked_posterior
from golddiff.kernels.pca_moments import _masked_moments
from golddiff.kernels.rows import _pairs, _weights


def test_loops_are_compiled_once_for_each_data_type(make_store, smooth_images, queries):
    images = smooth_images(70)
    for store in (make_store(images), make_store(images / 127.5 - 1)):
        for b in (1, 3):  # an array of one row is contiguous in either order
            x = queries(store, 1.0, b=b)
            for denoiser in (golddiff.PCA(store), golddiff.Optimal(store)):
                denoiser(x.clone().requires_grad_(), 1.0).sum().backward()
    for loop in (_masked_posterior, _masked_moments, _pairs, _weights):
        types = [signature[0].dtype for signature in loop.signatures]
        assert len(types) == len(set(types)) == 2, loop
