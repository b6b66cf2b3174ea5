"""``golddiff bench step`` and ``golddiff bench kamb``: methods and peers, step by step."""
