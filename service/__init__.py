"""The BentoML service."""

import runtimes  # noqa: F401 - turns ONNX Runtime's reports off, before anything imports it
