import json
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from data.tokenizer import load_tokenizer
from runtimes.artifact import Artifact
from runtimes.manifest import TOKENIZER
from runtimes.registry import open_runtime
from tests.service.conftest import png
from tests.service.front import check_error
from tests.service.tiny_artifact import MAX_LEN, TEXT_LABELS

TYPED = {"content-type": "application/json"}


def test_predictions_come_in_order_and_agree_with_the_runtime(
    client: TestClient, artifacts: dict[str, Artifact]
) -> None:
    text_artifact = artifacts["tiny-transject"]
    texts = ["good", "the plot was very bad", "a film " * 20, "not good"]
    response = client.post("/classify_text", json={"texts": texts, "top_k": 2})
    assert response.status_code == 200
    tokens, mask = load_tokenizer(text_artifact.file(TOKENIZER)).encode(texts, MAX_LEN)
    logits = open_runtime(text_artifact).predict({"tokens": tokens, "mask": mask})
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    named = {"model": "tiny-transject", "digest": text_artifact.digest}
    for row, prediction in zip(probs, response.json(), strict=True):
        first, second = (
            {"label": TEXT_LABELS[i], "index": i, "probability": pytest.approx(row[i], rel=1e-4)}
            for i in np.argsort(-row)
        )
        assert prediction == first | {"top_k": [first, second]} | named
    headers = response.headers
    assert (headers["x-assay-runtime"], headers["x-assay-precision"]) == ("onnx-cpu", "fp32")


def test_a_text_is_answered_as_if_it_were_alone(client: TestClient) -> None:
    texts = ["good", "the plot was very bad indeed"]
    together = client.post("/classify_text", json={"texts": texts}).json()
    alone = [client.post("/classify_text", json={"texts": [text]}).json()[0] for text in texts]
    for first, second in zip(together, alone, strict=True):
        assert first["index"] == second["index"]
        assert first["probability"] == pytest.approx(second["probability"], rel=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "code", "message"),
    [
        ({"texts": []}, 422, "no_texts", ""),
        ({"texts": ["good"] * 65}, 422, "too_many_texts", ""),
        ({"texts": ["good", ""]}, 422, "invalid_text", "Text 1"),
        ({"texts": [" <br /> "]}, 422, "invalid_text", "Text 0"),
        ({"texts": ["good", "\ud800"]}, 422, "invalid_text", "Text 1"),
        ({"texts": "good"}, 422, "invalid_body", ""),
        ({"texts": ["good", 1]}, 422, "invalid_body", ""),
        ({"texts": ["good"], "top_k": 0}, 422, "invalid_top_k", ""),
        ({"texts": ["good"], "top_k": True}, 422, "invalid_body", ""),
        ({"texts": ["good"], "explain": True}, 422, "not_explainable", ""),
        ({"texts": ["good"], "model": "nope"}, 404, "unknown_model", ""),
        ({"texts": ["good"], "model": "fashion-dot"}, 422, "wrong_task", ""),
        ({}, 422, "invalid_body", ""),
        ([], 422, "invalid_body", ""),
        (b"{", 400, "invalid_json", ""),
        (b"\xff", 400, "invalid_json", ""),
        (b'{"texts": [NaN]}', 400, "invalid_json", ""),
        (b"[" * 100_000, 400, "invalid_json", ""),
        (
            b'{"texts": ["good"], "top_k": 1, "top_k": 2}',
            400,
            "invalid_json",
            "the key 'top_k' must",
        ),
        (b'{"texts": [{"a": 1, "a": 1}]}', 400, "invalid_json", "'a' must not appear twice"),
        (rb'{"\ud800": 1, "\ud800": 2}', 400, "invalid_json", "ud800' must not appear"),
    ],
)
def test_what_is_not_acceptable_is_named(
    client: TestClient, body: Any, status: int, code: str, message: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    response = client.post("/classify_text", content=content, headers=TYPED)
    details = check_error(response, status, code, message)
    if code == "invalid_text":
        assert details == {"text": int(message.removeprefix("Text "))}


def test_the_body_must_be_json(client: TestClient) -> None:
    untyped = client.post("/classify_text", content=b'{"texts": ["good"]}')
    check_error(untyped, 415, "wrong_content_type")
    assert client.get("/classify_text").status_code == 405


def test_models_of_texts_take_no_images(client: TestClient) -> None:
    files = [("images", ("0.png", png()))]
    response = client.post("/classify", files=files, data={"model": "tiny-transject"})
    check_error(response, 422, "wrong_task")
    spec = '{"model": "tiny-transject", "attacks": [{"name": "fgsm", "eps": ["1/255"]}]}'
    response = client.post("/v1/evaluations", files=files, data={"spec": spec})
    check_error(response, 422, "wrong_task")
