"""Which training images are weighed at a noise level."""
