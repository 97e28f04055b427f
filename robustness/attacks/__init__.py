"""What is done to inputs so that a model errs."""
