"""Fast paths, each equal to a plain version that tests hold it to.

Everywhere ``flat`` (N, D) are images as they are stored, uint8 or float32, of which the value
``flat * scale + offset`` is compared; ``rows`` (k,) are those wanted, ``log_weights`` (k,) what is
added to their logits; ``x`` (b, D) are queries and ``gain`` is 1 / (2 sigma^2).
"""
