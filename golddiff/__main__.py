"""The entry point of ``golddiff`` and ``python -m golddiff``."""

import sys


def main() -> None:
    """Run the command line; Ctrl-C during its imports, a quarter of a second, ends it as later."""
    try:
        from golddiff.cli import main as run

        run()
    except KeyboardInterrupt:
        print("golddiff: interrupted; no partial files were written", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
