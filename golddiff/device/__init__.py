"""Denoising on a GPU: where the training set lies, what runs there, and in which order."""
