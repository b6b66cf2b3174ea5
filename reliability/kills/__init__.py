"""Work killed at random moments, then taken up again: ``python -m reliability.kills``."""
