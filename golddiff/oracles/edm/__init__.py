"""EDM's trained networks (Karras et al. 2022), read from NVIDIA's pickles as data."""

from golddiff.oracles.edm.pickled import load_edm

__all__ = ["load_edm"]
