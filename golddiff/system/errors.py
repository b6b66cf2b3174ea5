"""The errors that golddiff raises for bad input.

Every message names the argument or file, the value received and the values allowed.
The command line prints the message on one line and exits with status 2.
"""


def printable(text: str) -> str:
    """The text with line breaks and terminal control characters replaced by their escapes."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def one_line(error: Exception, most: int = 1000) -> str:
    """An error's message on one line of at most ``most`` characters; its type if it is empty."""
    text = " ".join(str(error)[: 2 * most].split())[:most]
    return printable(text) or type(error).__name__


class GoldDiffError(Exception):
    """Base class of all errors that golddiff raises on purpose; the message is one line."""

    def __str__(self) -> str:
        # The message may quote file names and file contents, which are untrusted.
        return printable(super().__str__())


class ArgumentError(GoldDiffError, ValueError):
    """An argument has a value that is not allowed."""


class SourceError(GoldDiffError, ValueError):
    """A source of images cannot be read, or its images are inconsistent."""


class StoreError(GoldDiffError, ValueError):
    """A store on disk is missing, incomplete, damaged or of another format version."""


class BusyError(StoreError):
    """Another process builds the same folder at this moment."""


class ClusterError(GoldDiffError, RuntimeError):
    """A cluster does not answer, or a shard of a store is lost for good."""


class CheckpointError(GoldDiffError, ValueError):
    """A checkpoint cannot be read, or is of an unexpected kind."""
