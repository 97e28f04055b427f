"""Benchmark the runtimes of an artifact once and keep the choice."""
