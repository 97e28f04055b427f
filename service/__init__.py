"""The BentoML service."""

import gc

import runtimes  # noqa: F401 - turns ONNX Runtime's reports off, before anything imports it

# What starts a server stays; looking for garbage in it at every 700 objects only takes time.
gc.set_threshold(10_000)
