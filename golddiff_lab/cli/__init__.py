"""``golddiff bench`` and ``golddiff reproduce``."""
