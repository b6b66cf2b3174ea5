"""The pictures: each file draws one kind and returns it, ``save`` writes it."""
