"""`POST /score`, and what else knows language models."""

import math
from collections.abc import Iterator

import httpx2
import numpy as np
import pytest
from starlette.testclient import TestClient

from runtimes.artifact import Artifact
from runtimes.registry import open_runtime
from runtimes.surprise import windows
from service.settings import Settings
from tests.service.conftest import serving
from tests.service.front import check_error


@pytest.fixture(scope="module")
def scoring(
    language_artifact: Artifact, tiny_models: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """The service with a language model beside its other models."""
    state = tmp_path_factory.mktemp("scoring")
    models = [tiny_models, language_artifact.folder]
    given = {"models": models, "state": state, "runtime": "onnx-cpu", "max_text_chars": 3000}
    given["batch_max"] = 2  # so that an answer comes from several batches
    with serving(Settings.model_validate(given)) as client:
        yield client


def _post(client: TestClient, text: object, **fields: object) -> httpx2.Response:
    return client.post("/score", json={"text": text, **fields})


@pytest.mark.parametrize("text", ["The FILM was  good!", "a film as bad " * 5, "one, " * 200])
def test_each_token_is_as_surprising_as_its_window_says(
    scoring: TestClient, language_artifact: Artifact, text: str
) -> None:
    answer = _post(scoring, text)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-assay-model"] == "tiny-language:1"
    found = answer.json()
    runtime, tokenizer = open_runtime(language_artifact), language_artifact.tokenizer()
    ids = tokenizer.ids([text], 10**6)[0]
    expected, N = [], 12
    for place in range(1, len(ids)):
        # The first window that holds the token predicts it.
        start = next(s for s in windows(len(ids), N) if s + N > place)
        seen = ids[None, start:place]
        feed = {"tokens": seen, "mask": np.ones(seen.shape, bool)}
        logits = runtime.predict(feed)[0, -1].astype(np.float64)
        expected.append((np.log(np.exp(logits).sum()) - logits[ids[place]]) / math.log(2))
    first, *others = found["tokens"]
    assert first["surprise"] is None and len(others) == found["count"] == len(expected)
    np.testing.assert_allclose([each["surprise"] for each in others], expected, atol=1e-4)
    assert found["perplexity"] == pytest.approx(2 ** np.mean(expected), rel=1e-4)
    characters = len(text) - len(first["token"])
    assert found["bits_per_character"] == pytest.approx(sum(expected) / characters, rel=1e-4)
    assert all(text.startswith(each["token"], each["start"]) for each in found["tokens"])
    assert "".join(each["token"] for each in found["tokens"]) == text.replace(" ", "")
    assert (found["context"], found["model"]) == (N, "tiny-language")


@pytest.mark.parametrize(("tokens", "context"), [(2, 12), (12, 12), (13, 12), (40, 12), (9, 1)])
def test_windows_cover_a_text_with_half_a_context_before_each_token(
    tokens: int, context: int
) -> None:
    starts = windows(tokens, context)
    assert starts[0] == 0 and starts[-1] == max(0, tokens - context)
    assert all(0 < b - a <= max(1, context // 2) for a, b in zip(starts, starts[1:], strict=False))


def test_what_cannot_be_scored_is_refused(scoring: TestClient, client: TestClient) -> None:
    for text in ("", " ", "film"):
        check_error(_post(scoring, text), 422, "text_too_short")
    check_error(_post(scoring, "a " * 2000), 413, "text_too_long")
    json = {"content-type": "application/json"}
    broken = scoring.post("/score", content=b'{"text": "a \\ud800 b"}', headers=json)
    check_error(broken, 422, "invalid_text")
    check_error(_post(scoring, ["a"]), 422, "invalid_body")
    check_error(_post(scoring, "a b", top_k=1), 422, "invalid_body")
    check_error(_post(scoring, "a b", model="tiny-transject"), 422, "wrong_task")
    check_error(_post(scoring, "a b", model="nobody"), 404, "unknown_model")
    check_error(_post(client, "a b"), 404, "unknown_model")
    check_error(scoring.post("/score", content=b"{", headers=json), 400, "invalid_json")
    given = {"texts": ["a b"], "model": "tiny-language"}
    check_error(scoring.post("/classify_text", json=given), 422, "wrong_task")


def test_models_and_the_protocol_v2_know_it(
    scoring: TestClient, language_artifact: Artifact
) -> None:
    (about,) = [m for m in scoring.get("/v1/models").json() if m["name"] == "tiny-language"]
    assert (about["task"], about["default"], about["labels"]) == ("language-model", True, [])
    V = language_artifact.manifest.output.shape[2]
    metadata = scoring.get("/v2/models/tiny-language").json()
    assert [each["shape"] for each in metadata["outputs"]] == [[-1, -1, V]] * 2
    texts = ["the film was good", "bad", "a very bad film is not good", "film"]
    tensor = {"name": "texts", "datatype": "BYTES", "shape": [4], "data": texts}
    answer = scoring.post("/v2/models/tiny-language/infer", json={"inputs": [tensor]}).json()
    outputs = {
        each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]
    }
    tokens, mask = language_artifact.tokenizer().encode(texts, 12)
    expected = open_runtime(language_artifact).predict({"tokens": tokens, "mask": mask})
    assert outputs["logits"].shape == (4, 7, V)
    np.testing.assert_allclose(outputs["logits"][mask], expected[mask], atol=1e-4)
    assert not outputs["logits"][~mask].any()
    np.testing.assert_allclose(outputs["probabilities"].sum(2), 1, atol=1e-5)
    wanted = [{"name": "logits", "parameters": {"classification": 2}}]
    refused = {"inputs": [tensor], "outputs": wanted}
    check_error(
        scoring.post("/v2/models/tiny-language/infer", json=refused), 422, "invalid_parameter"
    )
