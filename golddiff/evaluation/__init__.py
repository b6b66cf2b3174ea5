"""How alike a denoiser and an oracle are: the same noise on both sides, image by image."""
