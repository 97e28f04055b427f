"""Endpoints as targets: asked over a network, their answers kept in a ledger."""
