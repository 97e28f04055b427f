import io
import json
import os
import struct
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from runtimes.artifact import Artifact, open_artifact
from service.http.app import Gateway
from service.settings import ROOT, Settings, get_settings
from tests.conftest import Once
from tests.service.jobs.postgres import emptied, postgresql
from tests.service.tiny_artifact import noise, write_artifact, write_provable, write_text_artifact

LOCAL = "http://127.0.0.1:3000"  # a Host that is answered
KEYS = {name: f"key-of-the-caller-{name}" for name in ("pat", "eve", "ada", "ron")}
ENTRIES: list[dict[str, Any]] = [
    {"name": "pat", "key": KEYS["pat"], "scopes": ["predict"]},
    {"name": "eve", "key": KEYS["eve"], "scopes": ["evaluate"]},
    {"name": "ada", "key": KEYS["ada"], "scopes": ["admin", "predict", "evaluate"]},
    {"name": "ron", "key": KEYS["ron"], "scopes": ["predict"], "requests_per_minute": 2},
]


if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.service.front import Front
    from tests.service.page import Page


@pytest.fixture
def anyio_backend() -> str:
    """What runs tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="session")
def tiny_models(once: Once) -> Path:
    """A folder with small real artifacts: two models of images and one of texts."""

    def fill(folder: Path) -> None:
        write_artifact(folder / "dot", "fashion-dot", elliptical=False, seed=1)
        write_artifact(folder / "elliptical", "fashion-elliptical", seed=2)
        write_text_artifact(folder / "transject", "tiny-transject", seed=3)

    return once("tiny-models", fill)


@pytest.fixture(scope="session")
def tiny_artifact(tiny_models: Path) -> Artifact:
    return open_artifact(tiny_models / "elliptical")


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sample images, one of them with a label that no model knows."""
    folder = tmp_path_factory.mktemp("samples")
    for label in ("ankle-boot", "t-shirt-top", "unheard-of"):
        path = folder / "tiny" / label / "00000.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(png())
    return folder


@pytest.fixture(scope="session")
def client(
    tiny_models: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """The whole service in this process, BentoML's part included; no evaluator runs."""
    from service.app import Assay

    given = {"models": tiny_models, "samples": samples, "runtime": "onnx-cpu"}
    given["state"] = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        # It lasts until the last test of this process, and other packages' tests read the data.
        for name in {n for n in os.environ if n.startswith("ASSAY_")} - {"ASSAY_DATA"}:
            patch.delenv(name)
        for name, value in given.items():
            patch.setenv(f"ASSAY_{name.upper()}", str(value))
        get_settings.cache_clear()
        app = Assay.to_asgi()
        with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as test_client:
            yield test_client
    get_settings.cache_clear()


@pytest.fixture(scope="session")
def locked(
    tiny_models: Path, samples: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """The whole service in this process, with API keys."""
    settings = Settings(
        models=[tiny_models],
        samples=samples,
        state=tmp_path_factory.mktemp("locked"),
        runtime="onnx-cpu",
        api_keys=SecretStr(json.dumps(ENTRIES)),
    )
    with serving(settings) as client:
        yield client


@contextmanager
def serving(settings: Settings) -> Iterator[TestClient]:
    """A client of a whole worker in this process, opened for it; no evaluator runs."""
    from service.app import Assay
    from service.worker import Worker

    gateway = Gateway()
    worker = Worker(settings, gateway, schema=Assay.schema(), evaluator_url=None)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await worker.start()
        yield
        worker.close()

    app = Starlette(lifespan=lifespan, routes=[Mount("/", gateway)])
    with TestClient(app, base_url=LOCAL, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def settings(tiny_models: Path, tmp_path: Path) -> Settings:
    return Settings(models=[tiny_models], state=tmp_path / "state", runtime="onnx-cpu")


@pytest.fixture(scope="session")
def artifacts(tiny_models: Path) -> dict[str, Artifact]:
    folders = {"fashion-elliptical": "elliptical", "fashion-dot": "dot"}
    folders["tiny-transject"] = "transject"
    return {name: open_artifact(tiny_models / folder) for name, folder in folders.items()}


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The address of a running PostgreSQL server's own database."""
    # Not pytest's folder: the path of a socket may have 107 characters.
    with TemporaryDirectory(prefix="pg") as folder, postgresql(Path(folder) / "data") as address:
        yield address


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'assay.sqlite3'}"
    address: str = request.getfixturevalue("postgresql_server")
    return emptied(address)


@pytest.fixture
def front(tmp_path: Path, artifacts: dict[str, Artifact]) -> Iterator["Front"]:
    from tests.service.front import Front

    front = Front(tmp_path / "state", artifacts)
    yield front
    front.close()


@pytest.fixture(scope="module")
def untouched(
    tmp_path_factory: pytest.TempPathFactory, artifacts: dict[str, Artifact]
) -> Iterator["Front"]:
    """One front for all requests that leave nothing."""
    from tests.service.front import Front

    front = Front(tmp_path_factory.mktemp("untouched"), artifacts)
    yield front
    front.close()


@pytest.fixture(scope="session")
def page_url(tmp_path_factory: pytest.TempPathFactory, once: Once) -> Iterator[str]:
    """Address of a whole server with the shipped models and samples, and models to prove."""
    from tests.service.server import serve

    folder = tmp_path_factory.mktemp("page")
    labels = open_artifact(ROOT / "artifacts" / "fashion-dot").labels
    entry = {"url": "http://127.0.0.1:9", "model": "m", "labels": labels, "price": 2}
    entry["input"] = {"channels": 1, "height": 28, "width": 28}
    provable = once("provable", write_provable)
    served = f"{ROOT / 'artifacts'}{os.pathsep}{provable}"
    (folder / "targets.yaml").write_text(json.dumps({"shop": entry}))
    # No runtime is measured beside the tests.
    home = folder / "home"
    own: dict[str, Any] = {
        "ASSAY_RUNTIME": "onnx-cpu",
        "ASSAY_TARGETS": "targets.yaml",
        "ASSAY_MODELS": served,
    }
    with serve(str(ROOT), cwd=folder, home=home, **own) as server:
        yield server.url


@pytest.fixture(scope="session")
def places(page_url: str) -> dict[str, str]:
    """Where the page shows finished evaluations of every kind."""
    from tests.service.page import evaluations

    return evaluations(page_url)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Chrome"]:
    from tests.service.page import browser

    with browser(tmp_path_factory.mktemp("browser")) as chromium:
        yield chromium


@pytest.fixture
def page(driver: "Chrome", page_url: str) -> Iterator["Page"]:
    """The page, freshly opened; no script may fail, no policy be broken, no request leave."""
    from tests.service.page import Page

    driver.set_window_size(1280, 900)
    driver.get_log("browser")  # forget older lines
    driver.get_log("performance")
    opened = Page(driver, page_url)
    opened.forget()
    opened.open()
    opened.one(".model")
    yield opened
    # A status that the page shows as a message is also logged by the browser.
    said = [line["message"] for line in driver.get_log("browser")]
    assert [line for line in said if "the server responded with a status" not in line] == []
    # They stay with the service or in the browser.
    own = (f"{page_url}/", f"blob:{page_url}/", "data:image/", "about:")
    assert [url for url in opened.requested() if not url.startswith(own)] == []


def png(seed: int = 0, size: int = 8) -> bytes:
    """A noisy grey PNG."""
    return encoded(noise(1, seed=seed, size=size)[0])


def encoded(pixels: np.ndarray, *, kind: str = "PNG", mode: str | None = None) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(pixels)
    (image.convert(mode) if mode else image).save(stream, kind)
    return stream.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes that promises many pixels and holds none."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


def wait_until(condition: Callable[[], Any], *, seconds: float = 90) -> Any:
    """What a condition tells when it becomes true, or at the end of the time."""
    end = time.monotonic() + seconds
    while not (told := condition()) and time.monotonic() < end:
        time.sleep(0.05)
    return told
