"""Benchmarks, races against others' code, the paper's tables and figures: golddiff at work."""
