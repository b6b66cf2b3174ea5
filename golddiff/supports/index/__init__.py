"""An index of a store: each image compressed to a sixteenth of its values, one byte each."""

from golddiff.supports.index.image_index import Index, open_or_build

__all__ = ["Index", "open_or_build"]
