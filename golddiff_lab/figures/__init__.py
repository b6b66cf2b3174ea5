"""Pictures that only the demo, the paper and the training draw."""
