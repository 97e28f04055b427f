"""Who does the chunks of an evaluation: this process, several of them, or several machines."""
