"""``golddiff bench step`` and ``golddiff bench scaling``: methods and peers, timed by turns."""
