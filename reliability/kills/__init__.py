"""Jobs killed at random moments, then resumed: ``python -m reliability.kills``."""
