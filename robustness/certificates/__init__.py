"""Certificates and proofs: accuracy that no attack can lower."""
