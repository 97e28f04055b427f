"""The container image: how it is built, and the few files that only it needs."""
