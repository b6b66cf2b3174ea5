"""Fast code against float64 references on random cases: ``python -m reliability.numbers``."""
