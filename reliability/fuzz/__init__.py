"""All file readers on damaged and hostile input: ``python -m reliability.fuzz``."""
