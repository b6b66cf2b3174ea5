"""Networks to compare with: a training run that can be stopped and taken up again."""
