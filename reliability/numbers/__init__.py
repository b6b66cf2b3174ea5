"""Every fast path against its float64 twin, on random cases: ``python -m reliability.numbers``."""
