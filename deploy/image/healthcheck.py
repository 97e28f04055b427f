"""Ask the server of this container whether it is ready; the exit status is the answer."""

import os
import sys
from http.client import HTTPConnection, HTTPException

_TIMEOUT_S = 8.0


def ready(port: int) -> bool:
    """Whether `/readyz` on this host answers 200 within 8 seconds."""
    connection = HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    sys.exit(0 if ready(int(os.environ.get("BENTOML_PORT", "3000"))) else 1)
