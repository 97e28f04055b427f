"""How requests come in: keys, limits, forms, errors, and the description of all routes."""
