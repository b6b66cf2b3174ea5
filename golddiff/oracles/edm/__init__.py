"""EDM's trained networks (Karras et al. 2022), read from NVIDIA's pickles as data."""

from golddiff.oracles.edm.load import load_edm
from golddiff.oracles.edm.oracle import EDMOracle

__all__ = ["EDMOracle", "load_edm"]
