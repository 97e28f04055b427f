"""Untrusted images are decoded here: in processes that can be ended, under limits."""
