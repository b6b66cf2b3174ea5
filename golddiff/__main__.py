"""``python -m golddiff`` runs the command line."""

from golddiff.cli import main

main()
