"""Figures: each module draws one kind and returns it; ``save`` writes it."""
