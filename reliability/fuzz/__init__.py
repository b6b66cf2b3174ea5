"""Every reader of files under damaged and hostile input: ``python -m reliability.fuzz``."""
