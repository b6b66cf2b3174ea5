"""Figures used only by the demo, the paper and the training."""
