"""Layers and checks that several architectures share."""
