"""The training set on disk, its exact posteriors, its statistics and its cache."""
