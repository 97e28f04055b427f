"""Certificates: accuracy that is proved, up to a stated error."""
