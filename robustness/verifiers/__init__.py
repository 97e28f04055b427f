"""Verifiers of others: properties for them, and what their answers say of the served model."""
