"""An index over a store: finding the images that matter at a cost that hardly grows with N."""

from golddiff.index.files import Index
from golddiff.index.search import nearest

__all__ = ["Index", "nearest"]
