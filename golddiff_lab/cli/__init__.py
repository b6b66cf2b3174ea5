"""``golddiff bench``, ``demo``, ``oracle`` and ``reproduce``."""
