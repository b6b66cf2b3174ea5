"""Schedules: which training images are weighed at each noise level."""
