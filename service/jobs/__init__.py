"""Durable evaluations: uploads, the table of jobs, and the processes that work on them."""
