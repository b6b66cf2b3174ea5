"""Benchmarks, races against other implementations, and the paper's tables and figures."""
