"""Augmentation of image batches."""
