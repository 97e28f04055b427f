from collections.abc import Iterator
from pathlib import Path

import pytest

from service.settings import ROOT
from tests.service.server import serve


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server of the shipped models over a socket."""
    folder: Path = tmp_path_factory.mktemp("served")
    with serve(str(ROOT), cwd=folder, home=folder / "home", ASSAY_RUNTIME="onnx-cpu") as server:
        yield server.url
