"""``golddiff bench step`` and ``golddiff bench scaling``: time methods and peers in turn."""
