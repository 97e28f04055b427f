"""Inference forms of TransJect: folded matrices and blockwise computation."""
