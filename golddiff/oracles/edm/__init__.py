"""EDM's trained networks (Karras et al. 2022), read from NVIDIA's pickles as data."""
