import json
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from data.tokenizer import load_tokenizer
from runtimes.artifact import Artifact, open_artifact
from runtimes.manifest import TOKENIZER
from runtimes.registry import open_runtime
from tests.service.conftest import png
from tests.service.tiny_artifact import MAX_LEN, TEXT_LABELS


@pytest.fixture(scope="session")
def text_artifact(tiny_models: Path) -> Artifact:
    return open_artifact(tiny_models / "transject")


def _error(response: httpx2.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_predictions_come_in_order_and_agree_with_the_runtime(
    client: TestClient, text_artifact: Artifact
) -> None:
    texts = ["good", "the plot was very bad", "a film " * 20, "not good"]
    response = client.post("/classify_text", json={"texts": texts, "top_k": 2})
    assert response.status_code == 200
    tokens, mask = load_tokenizer(text_artifact.file(TOKENIZER)).encode(texts, MAX_LEN)
    logits = open_runtime(text_artifact).predict({"tokens": tokens, "mask": mask})
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for row, prediction in zip(probs, response.json(), strict=True):
        best = int(row.argmax())
        assert (prediction["index"], prediction["label"]) == (best, TEXT_LABELS[best])
        assert prediction["probability"] == pytest.approx(row[best], rel=1e-4)
        assert len(prediction["top_k"]) == 2
        assert (prediction["model"], prediction["digest"]) == (
            "tiny-transject",
            text_artifact.digest,
        )
    assert response.headers["x-assay-runtime"] == "onnx-cpu"
    assert response.headers["x-assay-precision"] == "fp32"


def test_a_text_is_answered_as_if_it_were_alone(client: TestClient) -> None:
    texts = ["good", "the plot was very bad indeed"]
    together = client.post("/classify_text", json={"texts": texts}).json()
    alone = [client.post("/classify_text", json={"texts": [text]}).json()[0] for text in texts]
    for first, second in zip(together, alone, strict=True):
        assert first["index"] == second["index"]
        assert first["probability"] == pytest.approx(second["probability"], rel=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"texts": []}, 422, "no_texts"),
        ({"texts": ["good"] * 65}, 422, "too_many_texts"),
        ({"texts": ["good", ""]}, 422, "invalid_text"),
        ({"texts": [" <br /> "]}, 422, "invalid_text"),
        ({"texts": ["good", "\ud800"]}, 422, "invalid_text"),
        ({"texts": "good"}, 422, "invalid_body"),
        ({"texts": ["good", 1]}, 422, "invalid_body"),
        ({"texts": ["good"], "top_k": 0}, 422, "invalid_top_k"),
        ({"texts": ["good"], "top_k": True}, 422, "invalid_body"),
        ({"texts": ["good"], "explain": True}, 422, "not_explainable"),
        ({"texts": ["good"], "model": "nope"}, 404, "unknown_model"),
        ({"texts": ["good"], "model": "fashion-dot"}, 422, "wrong_task"),
        ({}, 422, "invalid_body"),
        ([], 422, "invalid_body"),
    ],
)
def test_what_is_not_acceptable_is_named(
    client: TestClient, body: Any, status: int, code: str
) -> None:
    content, headers = json.dumps(body), {"content-type": "application/json"}
    response = client.post("/classify_text", content=content, headers=headers)
    assert _error(response) == (status, code)


def test_a_broken_text_is_named_by_its_place(client: TestClient) -> None:
    error = client.post("/classify_text", json={"texts": ["good", " "]}).json()["error"]
    assert error["details"] == {"text": 1}
    assert "Text 1" in error["message"]


def test_the_body_must_be_json(client: TestClient) -> None:
    typed = {"content-type": "application/json"}
    for body in (b"{", b"\xff", b'{"texts": [NaN]}', b"[" * 100_000):
        assert _error(client.post("/classify_text", content=body, headers=typed)) == (
            400,
            "invalid_json",
        )
    assert _error(client.post("/classify_text", content=b'{"texts": ["good"]}')) == (
        415,
        "wrong_content_type",
    )
    assert client.get("/classify_text").status_code == 405


def test_a_key_twice_is_refused_with_its_name(client: TestClient) -> None:
    typed = {"content-type": "application/json"}
    for body, key in (
        (b'{"texts": ["good"], "top_k": 1, "top_k": 2}', "'top_k'"),
        (b'{"texts": [{"a": 1, "a": 1}]}', "'a'"),
        (rb'{"\ud800": 1, "\ud800": 2}', r"'\ud800'"),
    ):
        response = client.post("/classify_text", content=body, headers=typed)
        assert _error(response) == (400, "invalid_json")
        expected = f"the key {key} must not appear twice in an object"
        assert expected in response.json()["error"]["message"]


def test_models_of_texts_take_no_images(client: TestClient) -> None:
    files = [("images", ("0.png", png()))]
    response = client.post("/classify", files=files, data={"model": "tiny-transject"})
    assert _error(response) == (422, "wrong_task")
    spec = '{"model": "tiny-transject", "attacks": [{"name": "fgsm", "eps": ["1/255"]}]}'
    response = client.post("/v1/evaluations", files=files, data={"spec": spec})
    assert _error(response) == (422, "wrong_task")
