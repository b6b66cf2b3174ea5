"""An index over a store: a sixteenth of every image's numbers, a byte each, kept in memory."""

from golddiff.supports.index.image_index import Index, open_or_build

__all__ = ["Index", "open_or_build"]
