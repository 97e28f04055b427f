import base64
import socket
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image
from scipy.special import softmax
from starlette.testclient import TestClient

from data.images import decode_image, to_input, to_pixels
from runtimes.artifact import Artifact
from runtimes.registry import open_runtime
from tests.service.conftest import bomb, encoded, png
from tests.service.front import check_error
from tests.service.tiny_artifact import LABELS


def _post(client: TestClient, *images: bytes, **fields: str) -> httpx2.Response:
    """The answer, which a hostile name of a file does not get into."""
    files = [
        ("images", (f"<script>alert(1)</script>../../{i}.png", image))
        for i, image in enumerate(images)
    ]
    response = client.post("/classify", files=files, data=fields)
    assert "script" not in response.text
    return response


def check_predictions(found: Any, artifact: Artifact, inputs: Any, labels: list[str]) -> None:
    """That predictions with their two best labels are what the runtime computes."""
    probs = softmax(open_runtime(artifact).predict(inputs).astype(np.float64), axis=1)
    named = {"model": artifact.name, "digest": artifact.digest}
    for row, prediction in zip(probs, found, strict=True):
        first, second = (
            {"label": labels[i], "index": i, "probability": pytest.approx(row[i], rel=1e-4)}
            for i in np.argsort(-row)[:2]
        )
        assert prediction == first | {"top_k": [first, second]} | named


def test_predictions_come_in_order_and_agree_with_the_runtime(
    client: TestClient, tiny_artifact: Artifact
) -> None:
    images = [png(seed) for seed in range(5)]
    response = _post(client, *images, top_k="2")
    assert response.status_code == 200
    spec = tiny_artifact.image_spec
    inputs = np.stack([to_input(decode_image(image), spec) for image in images])
    check_predictions(response.json(), tiny_artifact, inputs, LABELS)


def test_what_the_model_was_given_is_shown_on_request(
    client: TestClient, tiny_artifact: Artifact
) -> None:
    clear = Image.new("RGBA", (90, 70), (200, 30, 30, 0))  # transparent: on white
    photo = encoded(np.asarray(clear))
    images = [png(size=40), photo]
    answer = _post(client, *images, show_input="true").json()
    shown = [np.asarray(decode_image(base64.b64decode(one["input"]))) for one in answer]
    for image, found in zip(images, shown, strict=True):
        expected = to_pixels(decode_image(image), tiny_artifact.image_spec)
        np.testing.assert_array_equal(found, expected[0])
    assert shown[1].min() == 255
    assert "input" not in _post(client, png()).json()[0]


def test_model_is_chosen_by_name_and_version(client: TestClient) -> None:
    default = _post(client, png()).json()[0]
    assert default["model"] == "fashion-elliptical"
    for reference in ("fashion-dot", "fashion-dot:1", '"fashion-dot"'):
        assert _post(client, png(), model=reference).json()[0]["model"] == "fashion-dot"
    for nothing in ("", "null"):
        assert _post(client, png(), model=nothing, top_k=nothing).json() == [default]
    top_k = _post(client, png(), top_k="1000").json()[0]["top_k"]
    assert len(top_k) == len(LABELS)
    assert sum(entry["probability"] for entry in top_k) == pytest.approx(1)
    for name in ("nope", "fashion-dot:2", "../../etc", ":1"):
        check_error(_post(client, png(), model=name), 404, "unknown_model")


def test_1_to_64_images_are_taken(client: TestClient) -> None:
    assert len(_post(client, *[png()] * 64).json()) == 64
    for count in (65, 66, 200):
        check_error(_post(client, *[png()] * count), 422, "too_many_images", "64")
    form = {"content-type": "multipart/form-data; boundary=B"}
    for response in (
        client.post("/classify"),
        client.post("/classify", data={"top_k": "1"}),
        client.post("/classify", files={"model": (None, "fashion-dot")}),
        client.post("/classify", content=b"--B--\r\n", headers=form),
    ):
        check_error(response, 422, "no_images", "images")


def test_what_is_no_whole_image_is_refused_and_named(client: TestClient) -> None:
    whole = png(size=64)
    for length in (len(whole) // 2, 100, 40, 12):
        response = _post(client, png(), whole[:length])
        assert check_error(response, 422, "broken_image", "File 1") == {"file": 1}
    for content in (b"hello, I am text", b"", b"%PDF-1.7 ...", b"\0" * 5000):
        check_error(_post(client, content), 415, "not_an_image", "File 0")


def test_too_many_pixels_are_refused_before_decoding(client: TestClient) -> None:
    check_error(_post(client, bomb(60_000, 60_000)), 413, "too_many_pixels", "pixels")
    # As many as allowed: only whoever decodes it learns that it is broken.
    check_error(_post(client, bomb(7_000, 7_000)), 422, "broken_image", "File 0")


def test_the_images_of_a_request_have_pixels_in_common(client: TestClient) -> None:
    large = encoded(np.zeros((6_000, 6_000), bool))  # 36 of 64 million
    assert _post(client, large).status_code == 200
    message = "with the images before it more than 64000000 pixels"
    check_error(_post(client, large, large), 413, "too_many_pixels", message)


def test_broken_files_are_the_clients_fault(client: TestClient) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
    for kind in ("PNG", "JPEG", "GIF", "TIFF", "WEBP", "BMP"):
        whole = encoded(pixels, kind=kind)
        for _ in range(25):
            broken = bytearray(whole)
            for position in rng.integers(0, len(whole), 8):
                broken[position] = rng.integers(256)
            response = _post(client, bytes(broken[: rng.integers(1, len(whole) + 1)]))
            assert response.status_code in (200, 413, 415, 422), (kind, response.text)


def test_bad_fields_are_refused(client: TestClient) -> None:
    for top_k in ("0", "1.5", "abc", "9" * 5000, "true", "１"):
        check_error(_post(client, png(), top_k=top_k), 422, "invalid_top_k", "top_k")
    files = [("images", ("a.png", png())), ("model", ("m", b"\xff\xfe"))]
    check_error(client.post("/classify", files=files), 422, "invalid_text", "model")


def test_addresses_are_never_fetched(client: TestClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bait:
        url = f"http://127.0.0.1:{bait.getsockname()[1]}/x.png"
        text_part = [("images", (None, url))]
        for files in (text_part, [("images", ("a.png", png())), *text_part]):
            check_error(client.post("/classify", files=files), 415, "not_a_file", "images")
        check_error(client.post("/classify", data={"images": url}), 415, "not_a_file")
        for body in ({"images": [url]}, {"images": url}, url, {"images": ["/etc/passwd"]}):
            check_error(client.post("/classify", json=body), 415, "not_multipart")
        for kind in ("text/plain", "image/png", "application/vnd.bentoml+pickle", ""):
            raw = client.post("/classify", content=url, headers={"content-type": kind})
            check_error(raw, 415, "not_multipart", "multipart/form-data")
        check_error(_post(client, url.encode()), 415, "not_an_image")
        bait.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody waits
            bait.accept()


def test_method_serves_callers_in_the_process(client: TestClient, tmp_path: Any) -> None:
    from bentoml import get_current_service

    path = tmp_path / "a.png"
    path.write_bytes(png())
    assert client.portal is not None
    method = get_current_service().classify.local
    direct = client.portal.call(lambda: method([path], top_k=2))
    assert direct == _post(client, png(), top_k="2").json()
