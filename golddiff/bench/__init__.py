"""Benchmarks that ship with the package: ``golddiff bench``."""
