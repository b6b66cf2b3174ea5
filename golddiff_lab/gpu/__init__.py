"""What ``python -m golddiff_lab.gpu_campaign`` measures."""
