"""Trained networks to compare the analytical denoisers with, behind the same call."""
