"""Fast kernels, each tested against a plain reference implementation.

Shared arguments: ``flat`` (N, D) holds the stored images, uint8 or float32, with values
``flat * scale + offset``; ``rows`` (k,) selects images, ``log_weights`` (k,) are added to their
logits; ``x`` (b, D) are queries and ``gain`` is 1 / (2 sigma^2).
"""

import logging
import os
import tempfile

import numba

try:
    numba.njit(cache=True)(lambda: None)
except RuntimeError:  # neither the package's folder nor the user's cache can be written
    logging.getLogger("golddiff").warning(
        "compiled loops are lost when this process ends, since no folder for them can be written; "
        "the environment variable NUMBA_CACHE_DIR names one"
    )
    TEMPORARY = tempfile.TemporaryDirectory(prefix="golddiff-")
    # Numba reads the environment again before it compiles, and child processes inherit it.
    os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = TEMPORARY.name
