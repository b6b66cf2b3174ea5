"""Train networks for comparison; a run can be stopped and resumed."""
