import fcntl
import functools
import gc
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from httpx import create_ssl_context
from httpx._transports import default as transport

# The models of the tests are tiny: more threads only wait for each other. Set before torch loads.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# jsonschema would compile a grammar of international addresses for seconds; no test checks one.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]
# The tests start more than a hundred processes, each of which would compile our modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What tests write need not outlive a loss of power.
os.fsync = lambda fd: None

# httpx would read all certificates anew for each request.
transport.create_ssl_context = functools.cache(create_ssl_context)  # pyright: ignore[reportPrivateImportUsage]

# Nearly all that is made while tests are imported stays: to look for garbage takes seconds.
gc.disable()

pytest_plugins = ["tests.exported", "tests.imported", "tests.imported_texts"]

Once = Callable[[str, Callable[[Path], object]], Path]


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Makes a named folder once for all workers of a run, which read it and never change it."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "once"
    shared.mkdir(exist_ok=True)

    def make(name: str, fill: Callable[[Path], object]) -> Path:
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (shared / f"{name}.made").exists():
                shutil.rmtree(shared / name, ignore_errors=True)  # of a filling that failed
                (shared / name).mkdir()
                fill(shared / name)
                (shared / f"{name}.made").touch()
        return shared / name

    return make


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect, by name, what needs the data folder without one, and what is slow unless asked.

    Tests of the page go first: one worker has them all, and starts their server and browser.
    """
    items.sort(key=lambda item: "page_url" not in getattr(item, "fixturenames", ()))
    without_data = not os.environ.get("ASSAY_DATA")
    unasked = not config.option.markexpr
    deselected = [
        item
        for item in items
        if (without_data and item.get_closest_marker("data"))
        or (unasked and item.get_closest_marker("slow"))
    ]
    if deselected:
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if item not in deselected]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Look for garbage again, more seldom among a million objects than Python does by default."""
    gc.set_threshold(50_000)
    gc.enable()
