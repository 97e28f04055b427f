"""Who does the ranges of an evaluation: this process, several of them, or several machines."""
