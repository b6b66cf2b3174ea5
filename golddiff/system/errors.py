"""The errors that golddiff raises for bad input.

Every message names the argument or file, says what came and what is allowed.
The command line prints them as one line and exits with status 2.
"""


def printable(text: str) -> str:
    """A text on one line: a line break in it, or what a terminal would obey, as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(error: Exception, most: int = 1000) -> str:
    """What an error says, on one line of some length; its kind where it says nothing."""
    text = " ".join(str(error)[: 2 * most].split())[:most]
    return printable(text) or type(error).__name__


class GoldDiffError(Exception):
    """Base of every error that golddiff raises on purpose; its text is one printable line."""

    def __str__(self) -> str:
        # Names of files, and what files hold, come from elsewhere.
        return printable(super().__str__())


class ArgumentError(GoldDiffError, ValueError):
    """An argument has a value that is not allowed."""


class SourceError(GoldDiffError, ValueError):
    """A source of images cannot be read, or holds images that do not fit together."""


class StoreError(GoldDiffError, ValueError):
    """A store on disk is missing, incomplete, damaged or of another format version."""


class ClusterError(GoldDiffError, RuntimeError):
    """A cluster does not answer, or a shard of a store is lost and cannot come back."""


class CheckpointError(GoldDiffError, ValueError):
    """A checkpoint that cannot be read, or that is of another kind than was asked for."""
