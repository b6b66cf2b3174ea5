"""``golddiff bench gpu``: a step of GoldDiff(PCA) on a device."""
