"""``python -m golddiff``: the command line."""

from golddiff.cli import main

main()
