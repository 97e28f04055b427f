"""Open and run artifacts; nothing here writes one."""

import os

# ONNX Runtime's builds report their use over the network, with an identifier of the device that
# they keep in the home folder, unless this is set before their import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
