import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from data.tokenizer import load_tokenizer
from runtimes.artifact import Artifact
from runtimes.manifest import TOKENIZER
from tests.service.api.test_classify import check_predictions
from tests.service.conftest import png
from tests.service.front import check_error
from tests.service.tiny_artifact import MAX_LEN, TEXT_LABELS


def test_texts_are_answered_in_order_as_if_each_were_alone(
    client: TestClient, artifacts: dict[str, Artifact]
) -> None:
    artifact = artifacts["tiny-transject"]
    texts = ["good", "the plot was very bad", "a film " * 20, "not good"]
    response = client.post("/classify_text", json={"texts": texts, "top_k": 2})
    assert response.status_code == 200
    for text, prediction in zip(texts, response.json(), strict=True):
        for name in ("tokens", "words", "warnings"):
            del prediction[name]
        tokens, mask = load_tokenizer(artifact.file(TOKENIZER)).encode([text], MAX_LEN)
        check_predictions([prediction], artifact, {"tokens": tokens, "mask": mask}, TEXT_LABELS)
    headers = response.headers
    assert (headers["x-assay-runtime"], headers["x-assay-precision"]) == ("onnx-cpu", "fp32")


READ = [
    ("a good 😀", (6, 6), (3, 1), ["1 of 3 words is unknown."]),
    ("不好 a", (3, 3), (3, 2), ["2 of 3 words are unknown."]),
    ("a", (1, 1), (1, 0), []),
    ("bad " * 400, (1200, 8), (3, 0), ["Cut at 8 of 1,200 tokens."]),
    ("🤮🤮🤮", (1, 1), (1, 1), ["The model does not know the only word that it read; its answer"]),
    ("这" * 9, (9, 8), (8, 8), ["The model knows none of the 8 words that it", "Cut at 8 of 9 "]),
]


def test_what_the_model_could_not_read_is_said(client: TestClient) -> None:
    texts = [text for text, *_ in READ]
    found = client.post("/classify_text", json={"texts": texts}).json()
    tensor = {"name": "texts", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    answer = client.post("/v2/models/tiny-transject/infer", json={"inputs": [tensor]}).json()
    v2 = {name: json.loads(value) for name, value in answer["parameters"].items()}
    assert v2["warnings"] == [one["warnings"] for one in found]
    for i, (one, (_, tokens, words, warnings)) in enumerate(zip(found, READ, strict=True)):
        assert one["tokens"] == dict(zip(("total", "read"), tokens, strict=True))
        assert one["words"] == dict(zip(("read", "unknown"), words, strict=True))
        for said, start in zip(one["warnings"], warnings, strict=True):
            assert said.startswith(start)
        assert (v2["tokens"][i], v2["tokens_read"][i]) == tokens
        assert (v2["words_read"][i], v2["words_unknown"][i]) == words


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
        ({"texts": ["good", "a" * 100_001]}, 413, "text_too_long", "Text 1 has 100,001 char"),
        ({"texts": ["a" * 99_000] * 21}, 413, "body_too_large", "2 MB"),
        ({"texts": [1] * 20_000}, 413, "body_too_large", "more than 20,000 items"),
        ({"texts": [1] * 19_000}, 422, "invalid_body", "texts.0"),
        ({"texts": ["good"], "x" * 300_000: 1}, 422, "invalid_body", "x{200}:"),
        ({"texts": ["good"], "\ud800": 1}, 422, "invalid_body", ""),
        ({str(key): 1 for key in range(900)}, 422, "invalid_body", ""),
        ([], 422, "invalid_body", ""),
        (b"{", 400, "invalid_json", ""),
        (b'{"texts": [], "texts": []}', 400, "invalid_json", "'texts' must not appear twice"),
    ],
)
def test_what_is_not_acceptable_is_named(
    client: TestClient, body: Any, status: int, code: str, message: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body)
    response = client.post(
        "/classify_text", content=content, headers={"content-type": "application/json"}
    )
    details = check_error(response, status, code, message)
    assert len(response.content) < 16_000
    if code == "invalid_body" and isinstance(body, dict):
        assert 1 <= len(details) <= 16
    if code == "invalid_text":
        assert details == {"text": int(message.removeprefix("Text "))}


def test_bodies_and_models_of_another_kind_are_refused(client: TestClient) -> None:
    untyped = client.post("/classify_text", content=b'{"texts": ["good"]}')
    check_error(untyped, 415, "wrong_content_type")
    files = [("images", ("0.png", png()))]
    response = client.post("/classify", files=files, data={"model": "tiny-transject"})
    check_error(response, 422, "wrong_task")
    spec = '{"model": "tiny-transject", "attacks": [{"name": "fgsm", "eps": ["1/255"]}]}'
    response = client.post("/v1/evaluations", files=files, data={"spec": spec})
    check_error(response, 422, "wrong_task")
