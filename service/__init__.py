"""The BentoML service."""

import export  # noqa: F401 - turns ONNX Runtime's reports off, before anything imports it
