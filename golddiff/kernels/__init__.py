"""Fast kernels, each tested against a plain reference implementation.

Shared arguments: ``flat`` (N, D) holds the stored images, uint8 or float32, with values
``flat * scale + offset``; ``rows`` (k,) selects images, ``log_weights`` (k,) are added to their
logits; ``x`` (b, D) are queries and ``gain`` is 1 / (2 sigma^2).
"""
