"""Durable evaluations: what is uploaded, the table, the processes that work on it, the routes."""
