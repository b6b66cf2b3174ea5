"""Trained networks to compare with: denoisers ``D(x, sigma, labels)`` read from checkpoints."""
