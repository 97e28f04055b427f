"""What becomes of images that are uploaded for an evaluation, and of those nobody waits for."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from starlette.testclient import TestClient

from data.images import ImageSpec, decode_image, to_pixels
from data.sets import PixelSet, load_pixels
from runtimes.artifact import Artifact
from service.jobs.uploads import open_inputs
from service.settings import Settings
from tests.service.conftest import wait_until
from tests.service.decoding.hostile import file_of, many_chunks, many_scans, photo, plain_comments
from tests.service.decoding.test_pool import processes
from tests.service.front import FGSM, URL, Front, archive, check_error, zipped
from tests.service.tiny_artifact import LABELS

FILES = {"a.webp": file_of(photo(60, 40), "WEBP"), "b.png": file_of(photo(9, 9), "PNG")}
LARGE: Any = {"max_pixels": 100_000_000, "decode_cpu_s": 60}
COSTLY = {"costly.jpg": many_scans(95, 10_000)}  # some seconds


def parquet() -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"image": list(FILES.values())}), stream)
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["single", "zip", "parquet"])
def test_only_the_pixels_that_models_read_are_kept(front: Front, kind: str) -> None:
    sent = {
        "single": [("images", named) for named in FILES.items()],
        "zip": archive(zipped(FILES | {".junk": b"x" * 100_000, "notes.txt": b"x" * 100_000})),
        "parquet": archive(parquet()),
    }
    spec = json.dumps(FGSM | {"compare_with": "fashion-dot"})  # of the same size
    accepted = front.post(sent[kind], spec=spec)
    assert accepted.status_code == 202, accepted.text
    folder = front.folder(accepted.json()["id"])
    assert sorted(path.name for path in folder.iterdir()) == ["inputs.json", "pixels-0.npy"]
    found = open_inputs(folder, LABELS)
    assert isinstance(found, PixelSet)
    (size,) = found.arrays
    expected = [to_pixels(decode_image(content), size) for content in FILES.values()]
    np.testing.assert_array_equal(load_pixels(found, size), expected)
    np.testing.assert_array_equal(load_pixels(found.take([1]), size), expected[1:])


def test_pixels_are_read_at_the_size_of_each_model() -> None:
    sizes = [ImageSpec(channels=c, height=4 * c, width=5) for c in (1, 3)]
    arrays = {size: np.full((2, size.channels, size.height, 5), 7, np.uint8) for size in sizes}
    images = PixelSet(
        names=["a", "b"],
        labels=None,
        label_names=None,
        reader=lambda index: Image.new("L", (1, 1)),
        arrays=arrays,
    )
    for size in sizes:
        assert load_pixels(images.take([1]), size).shape == (1, size.channels, size.height, 5)


def test_what_images_may_cost_follows_from_the_size_of_the_upload(front: Front) -> None:
    bits = file_of(Image.new("1", (6_500, 6_500)), "PNG")  # 42 million pixels in 6 kB
    sent = [("images", (f"{index}.png", bits)) for index in range(2)]
    message = "1.png: with the images before it more than 64"
    check_error(front.post(sent), 413, "too_many_pixels", message)
    slow = many_chunks(25_000)  # 50 ms or more
    many = zipped({f"{index}.png": slow for index in range(80)})
    check_error(front.post(archive(many)), 422, "image_too_costly")
    assert front.folders() == []
    assert front.post(archive(zipped(FILES))).status_code == 202


def test_images_of_other_formats_are_told_which_are_taken(front: Front, client: TestClient) -> None:
    taken = "taken are PNG, JPEG, WEBP, GIF, BMP, TIFF"
    for content in (
        file_of(photo(9, 9), "AVIF"),
        file_of(photo(9, 9), "JPEG2000"),
        file_of(photo(9, 9), "PPM"),
        plain_comments(10),
        b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    ):
        files = [("images", ("a", content))]
        check_error(client.post("/classify", files=files), 415, "format_not_taken", taken)
        check_error(front.post(files), 415, "format_not_taken", taken)
    letter = {"images": b"Dear reader"}
    check_error(client.post("/classify", files=letter), 415, "not_an_image", taken)
    assert "HEIC is not read; save it as JPEG" in client.post("/classify", files=files).text


async def leave(app: Any, request: httpx.Request, when: Callable[[], bool]) -> int:
    """Send a request and leave as soon as something holds; the status that nobody reads."""
    content = await request.aread()
    messages = [{"type": "http.request", "body": content}]
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        """The request, and later the end of the connection."""
        if messages:
            return messages.pop()
        while not when():
            await asyncio.sleep(0.02)
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
    scope = {"type": "http", "method": "POST", "path": request.url.path, "headers": headers}
    scope |= {"query_string": b"", "client": ("127.0.0.1", 1), "http_version": "1.1"}
    handle: Awaitable[None] = app(scope, receive, send)
    await asyncio.wait_for(handle, 30)
    return statuses[0]


def busy() -> bool:
    return any(process.cpu_times().user > 0.3 for process in processes())


def test_an_upload_whose_sender_left_leaves_nothing(
    tmp_path: Path, artifacts: dict[str, Artifact]
) -> None:
    front = Front(tmp_path, artifacts, **LARGE)
    parts = [("spec", (None, json.dumps(FGSM))), *archive(zipped(COSTLY))]
    request = httpx.Request("POST", f"http://assay{URL}", files=parts)
    assert asyncio.run(leave(front.as_caller, request, busy)) == 499
    assert front.folders() == [] and front.store.page() == ([], None)
    assert wait_until(lambda: not processes(), seconds=5)
    front.close()


def test_images_of_a_prediction_whose_sender_left_are_given_up(
    tmp_path: Path, tiny_models: Path
) -> None:
    from service.http.app import Gateway
    from service.worker import Worker

    settings = Settings(models=[tiny_models], state=tmp_path, runtime="onnx-cpu", **LARGE)

    async def conversation() -> int:
        gateway = Gateway()
        worker = Worker(settings, gateway, schema={}, evaluator_url=None)
        await worker.start()
        files = [("images", named) for named in COSTLY.items()]
        request = httpx.Request("POST", "http://localhost/classify", files=files)
        try:
            return await leave(gateway, request, busy)
        finally:
            worker.close()

    assert asyncio.run(conversation()) == 499
    assert wait_until(lambda: not processes(), seconds=5)
