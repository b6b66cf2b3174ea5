"""Compare a denoiser with an oracle image by image, both started from the same noise."""
