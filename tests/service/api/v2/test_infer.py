"""Inference over the protocol V2, in this process: what is answered, and all that is refused."""

import json
import struct
from typing import Any

import httpx2
import numpy as np
import pytest
from scipy.special import softmax
from starlette.testclient import TestClient

from runtimes.artifact import Artifact
from runtimes.registry import open_runtime
from tests.service.front import check_error
from tests.service.tiny_artifact import noise

URL = "/v2/models/fashion-elliptical/infer"
TEXT_URL = "/v2/models/tiny-transject/infer"
SHAPE = [2, 1, 8, 8]
TYPED = {"content-type": "application/json"}
PIXELS = noise(2)[:, None].astype(np.float32) / np.float32(255)
WHOLE = PIXELS.tobytes()


def _images(**changes: Any) -> dict[str, Any]:
    tensor = {"name": "images", "datatype": "FP32", "shape": SHAPE, "data": PIXELS.tolist()}
    return {key: value for key, value in (tensor | changes).items() if value is not None}


def _body(*inputs: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"inputs": list(inputs) or [_images()], **fields}


def _with_size(size: Any, **changes: Any) -> dict[str, Any]:
    return _body(_images(**{"data": None, "parameters": {"binary_data_size": size}} | changes))


def _wanting(**parameters: Any) -> dict[str, Any]:
    return _body(outputs=[{"name": "logits", "parameters": parameters}])


def _binary(client: TestClient, url: str, body: Any, raw: bytes) -> httpx2.Response:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"inference-header-content-length": str(len(text))}
    return client.post(url, content=text + raw, headers=headers)


def _texts(*texts: bytes) -> tuple[dict[str, Any], bytes]:
    raw = b"".join(struct.pack("<I", len(text)) + text for text in texts)
    tensor = {"name": "texts", "datatype": "BYTES", "shape": [len(texts)]}
    return tensor | {"parameters": {"binary_data_size": len(raw)}}, raw


def test_json_gives_what_the_runtime_computes(client: TestClient, tiny_artifact: Artifact) -> None:
    answer = client.post(URL, json=_body(id="a-1"))
    assert answer.status_code == 200
    found = answer.json()
    outputs = found.pop("outputs")
    assert found == {"model_name": "fashion-elliptical", "model_version": "1", "id": "a-1"}
    logits, probs = (np.array(output.pop("data")).reshape(2, 3) for output in outputs)
    each = {"datatype": "FP32", "shape": [2, 3]}
    assert outputs == [{"name": name, **each} for name in ("logits", "probabilities")]
    expected = open_runtime(tiny_artifact).predict(PIXELS)
    np.testing.assert_allclose(logits, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(probs, softmax(expected, axis=1), rtol=1e-5)
    headers = answer.headers
    assert headers["x-assay-model"] == "fashion-elliptical:1"
    assert (headers["x-assay-runtime"], headers["x-assay-precision"]) == ("onnx-cpu", "fp32")


def test_bytes_go_both_ways(client: TestClient, tiny_artifact: Artifact) -> None:
    outputs: list[dict[str, Any]] = [{"name": "probabilities"}, {"name": "logits"}]
    outputs[0]["parameters"] = {"binary_data": False}
    asked = _with_size(512) | {"outputs": outputs, "parameters": {"binary_data_output": True}}
    answer = _binary(client, URL, asked, WHOLE)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers["inference-header-content-length"])
    head = json.loads(answer.content[:length])
    assert "id" not in head
    probabilities, logits = head["outputs"]
    assert len(probabilities["data"]) == 6 and "parameters" not in probabilities
    assert logits["parameters"]["binary_data_size"] == 24 and "data" not in logits
    found = np.frombuffer(answer.content[length:], "<f4").reshape(2, 3)
    np.testing.assert_allclose(found, open_runtime(tiny_artifact).predict(PIXELS), rtol=1e-5)


def test_flat_data_and_a_named_version_are_taken(client: TestClient) -> None:
    nested = client.post(URL, json=_body()).json()
    flat = _body(_images(data=PIXELS.ravel().tolist()))
    assert client.post(URL, json=flat).json() == nested
    assert client.post("/v2/models/fashion-elliptical/versions/1/infer", json=flat).json() == nested


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"inputs": []}, 422, "missing_input"),
        ({"inputs": [{}]}, 422, "invalid_body"),
        (_body(extra=1), 422, "invalid_body"),
        (_body(parameters={"sequence_id": 1}), 422, "unknown_parameter"),
        (_body(parameters={"binary_data_output": 1}), 422, "invalid_parameter"),
        (_body(_images(), _images()), 422, "duplicate_tensor"),
        (_body(_images(name="pixels")), 422, "unknown_input"),
        (_body(_images(datatype="FP16")), 422, "invalid_tensor"),
        (_body(_images(shape=[2, 1, 8, 9])), 422, "invalid_tensor"),
        (_body(_images(shape=[0, 1, 8, 8], data=[])), 422, "invalid_tensor"),
        (_body(_images(shape=[3, 1, 8, 8])), 400, "invalid_tensor"),
        (_body(_images(shape=[65, 1, 8, 8])), 422, "too_many_inputs"),
        (_body(_images(shape=[-2, 1, 8, 8])), 422, "invalid_body"),
        (_body(_images(shape=[2**40, 1, 8, 8])), 422, "invalid_body"),
        (_body(_images(data=None)), 400, "invalid_tensor"),
        (_body(_images(data=["x"] * 128)), 422, "invalid_tensor"),
        (_body(_images(data=[[1], [1, 2]])), 400, "invalid_tensor"),
        (_body(_images(data=PIXELS.reshape(2, 64).tolist())), 400, "invalid_tensor"),
        (_body(_images(data=(PIXELS + 1).tolist())), 422, "invalid_tensor"),
        (_body(_images(data=[10**400] + [0] * 127)), 422, "invalid_tensor"),
        (_body(_images(parameters={"shared_memory_region": "x"})), 422, "unknown_parameter"),
        (_body(outputs=[{"name": "nope"}]), 422, "unknown_output"),
        (_body(outputs=[{"name": str(i)} for i in range(5000)]), 422, "invalid_body"),
        (_body(*[_images(name=str(i), data=[1]) for i in range(500)]), 422, "invalid_body"),
        (_body(_images(shape=["x"] * 50_000)), 422, "invalid_body"),
        (_body(_images(shape=[1] * 50_000)), 422, "invalid_body"),
        (_body(_images(data=[[]] * 30_000)), 400, "invalid_tensor"),
        (_body(_images(data=[[]] * 40_000)), 413, "body_too_large"),
        (_body(_images(data=[0] * 160_000)), 413, "body_too_large"),
        (_body(_images(data=["a" * 100_000] + [""] * 100_000)), 400, "invalid_tensor"),
        (_body(_images(data=["a" * 100_000] + [""] * 127)), 422, "invalid_tensor"),
        (_body(_images(data=[True] * 128)), 422, "invalid_tensor"),
        (_body(_images(**{str(i): 1 for i in range(7000)})), 422, "invalid_body"),
        (_body(parameters={str(i): 1 for i in range(7000)}), 422, "unknown_parameter"),
        (_body(parameters={"a": json.loads("[" * 500 + "]" * 500)}), 422, "unknown_parameter"),
        (_body(_images(name="\ud800")), 422, "invalid_body"),
        (_body(**{"\ud800": 1}), 422, "invalid_body"),
        (_body(id="\ud800"), 422, "invalid_body"),
        (_body(id="x" * 201), 422, "invalid_body"),
        (_body(outputs=[{"name": "logits"}] * 2), 422, "duplicate_tensor"),
        (_wanting(classification=-1), 422, "invalid_parameter"),
        (_wanting(binary_data="yes"), 422, "invalid_parameter"),
        (_wanting(x=1), 422, "unknown_parameter"),
    ],
)
def test_what_json_may_not_say(client: TestClient, body: Any, status: int, code: str) -> None:
    answer = client.post(URL, content=json.dumps(body), headers=TYPED)
    check_error(answer, status, code)
    assert len(answer.content) < 16_000


@pytest.mark.parametrize(
    ("body", "raw", "status"),
    [
        (_with_size(512), WHOLE[:-1], 400),
        (_with_size(512), WHOLE + b"x", 400),
        (_with_size(0), b"", 400),
        (_with_size(-1), b"", 400),
        (_with_size("512"), WHOLE, 400),
        (_with_size(True), b"x", 400),
        (_with_size(512, data=PIXELS.tolist()), WHOLE, 400),
        (_with_size(512), (PIXELS * np.nan).tobytes(), 422),
        (_with_size(512), (PIXELS - 1).tobytes(), 422),
    ],
)
def test_what_bytes_may_not_be(client: TestClient, body: Any, raw: bytes, status: int) -> None:
    check_error(_binary(client, URL, body, raw), status, "invalid_tensor")


def test_what_texts_may_not_be(client: TestClient) -> None:
    good, raw = _texts(b"good", b"bad")

    def sized(content: bytes, rows: int = 2) -> httpx2.Response:
        size = {"binary_data_size": len(content)}
        return _binary(
            client, TEXT_URL, _body(good | {"shape": [rows], "parameters": size}), content
        )

    tensor = {"name": "texts", "datatype": "BYTES", "shape": [2], "data": ["good", "bad"]}
    assert sized(raw).json() == client.post(TEXT_URL, json=_body(tensor)).json()
    for content in (raw[:-1], raw[:-4], raw[:3], raw + raw, raw[:8], b"\xff" * 8):
        check_error(sized(content), 400, "invalid_tensor")
    check_error(sized(_texts(b"good", b"\xff")[1]), 422, "invalid_tensor")
    check_error(sized(_texts(b"good", b"")[1]), 422, "invalid_text")
    check_error(sized(raw, 65), 422, "too_many_inputs")
    check_error(sized(_texts(b"good", b"a" * 100_001)[1]), 413, "text_too_long")
    check_error(sized(_texts(*[b"a" * 90_000] * 23)[1], 23), 413, "body_too_large")
    for data in (["good", 1], ["good", None], [["good"], ["bad"]]):
        check_error(
            client.post(TEXT_URL, json=_body(tensor | {"data": data})), 422, "invalid_tensor"
        )


def test_a_body_that_cannot_be_json_is_refused(client: TestClient) -> None:
    for text in (b"", b"[" * 30_000, b'{"id": "a", "id": "b"}'):
        check_error(client.post(URL, content=text), 400, "invalid_json")
        check_error(_binary(client, URL, text, b""), 400, "invalid_json")
    text = json.dumps(_body())
    for length in ("-1", "x", "99999", "9" * 500, "１"):
        headers = {b"inference-header-content-length": length.encode()}
        answer = client.post(URL, content=text, headers=headers)
        check_error(answer, 400, "invalid_header_length")
    for kind in ("application/vnd.bentoml+pickle", "text/plain", "multipart/form-data"):
        answer = client.post(URL, content=text, headers={"content-type": kind})
        check_error(answer, 415, "wrong_content_type")
    for url in (URL, "/classify", "/classify_text"):
        answer = client.post(url, content=text, headers=TYPED | {"content-encoding": "gzip"})
        check_error(answer, 415, "compressed_body")
        assert answer.headers["accept-encoding"] == "identity"
    long = json.dumps({"inputs": [], "id": "x" * 8_000_000})
    for url in (URL, "/classify_text"):  # it would hold up others
        check_error(client.post(url, content=long, headers=TYPED), 413, "body_too_large")
    sized = {"inference-header-content-length": str(len(long))}
    check_error(client.post(URL, content=long, headers=sized), 413, "body_too_large")
    small = json.dumps({"parameters": {"x": "x" * 66_000}})
    for url in ("/v2/repository/index", "/v2/repository/models/fashion-dot/unload"):
        check_error(client.post(url, content=small, headers=TYPED), 413, "body_too_large")


def test_unknown_models_and_queries_are_refused(client: TestClient) -> None:
    for url in ("/v2/models/nope/infer", "/v2/models/fashion-dot/versions/7/infer"):
        check_error(client.post(url, json=_body()), 404, "unknown_model")
    for url in (URL, "/classify", "/classify_text"):
        assert client.post(f"{url}?top_k=1", json=_body()).status_code == 422
    for url in ("/v2", "/v2/health/live", "/v2/models/fashion-dot"):
        assert client.get(f"{url}?x=1").status_code == 422
