"""What turns the repository into something that runs elsewhere."""
