"""``golddiff bench``, ``demo``, ``oracle``, ``plot`` and ``reproduce``."""
