"""The training set on disk, its statistics, its cache."""
