"""The arithmetic of gradient attacks, on tensors."""
