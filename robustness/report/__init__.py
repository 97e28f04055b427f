"""What an evaluation leaves behind: its schema, how it is built, and its pictures."""
