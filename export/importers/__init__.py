"""Make artifacts of models that were trained elsewhere."""
