"""The unmodified tritonclient, and BentoML's client, with a real server and the shipped models."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bentoml
import httpx
import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from data.images import decode_image, to_input
from runtimes.artifact import find_artifacts
from runtimes.tasks import IMAGES
from runtimes.tasks import TEXTS as READS_TEXTS
from service.settings import ROOT
from tests.service.conftest import png

TEXTS = ["a fine film", "dull and far too long"]
ARTIFACTS = {
    artifact.name: artifact
    for artifact in find_artifacts([ROOT / "artifacts"])
    if artifact.task in (IMAGES, READS_TEXTS)
}


@pytest.fixture
def client(page_url: str) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(page_url.removeprefix("http://")) as client:
        yield client


def _inputs(name: str, *, binary: bool) -> triton.InferInput:
    artifact = ARTIFACTS[name]
    if artifact.manifest.task == IMAGES:
        pixels = [to_input(decode_image(png(s, 28)), artifact.image_spec) for s in range(3)]
        values: np.ndarray = np.stack(pixels)
        tensor = triton.InferInput("images", list(values.shape), "FP32")
    else:
        values = np.array([text.encode() for text in TEXTS], np.object_)
        tensor = triton.InferInput("texts", [2], np_to_triton_dtype(values.dtype))
    return tensor.set_data_from_numpy(values, binary_data=binary)


def _classified(address: str, name: str) -> list[dict[str, Any]]:
    if ARTIFACTS[name].manifest.task == IMAGES:
        files = [("images", (f"{s}.png", png(s, 28))) for s in range(3)]
        answer = httpx.post(f"{address}/classify", files=files, data={"model": name, "top_k": "10"})
    else:
        body = {"texts": TEXTS, "model": name, "top_k": 10}
        answer = httpx.post(f"{address}/classify_text", json=body)
    return answer.raise_for_status().json()


def test_it_lists_and_describes_every_model(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live() and client.is_server_ready()
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    index = client.get_model_repository_index()
    assert {row["name"] for row in index} >= set(ARTIFACTS)
    assert {row["state"] for row in index} == {"READY"}
    for name, artifact in ARTIFACTS.items():
        assert client.is_model_ready(name, artifact.version)
        metadata = client.get_model_metadata(name, artifact.version)
        assert metadata["versions"] == [artifact.version]
        assert metadata["outputs"][0]["shape"] == [-1, len(artifact.labels)]
        assert client.get_model_config(name)["name"] == name
    stats = client.get_inference_statistics()["model_stats"]
    assert {row["name"] for row in stats} >= set(ARTIFACTS)


@pytest.mark.parametrize("name", sorted(ARTIFACTS))
@pytest.mark.parametrize("binary", [True, False])
def test_it_infers_every_model_as_classify_does(
    client: triton.InferenceServerClient, page_url: str, name: str, binary: bool
) -> None:
    wanted = [
        triton.InferRequestedOutput("probabilities", binary_data=binary),
        triton.InferRequestedOutput("logits", binary_data=not binary),
    ]
    result = client.infer(name, [_inputs(name, binary=binary)], outputs=wanted, request_id="7")
    assert result.get_response()["id"] == "7"
    found, logits = result.as_numpy("probabilities"), result.as_numpy("logits")
    assert found is not None and logits is not None and found.shape == logits.shape
    wanted = [triton.InferRequestedOutput("probabilities", class_count=99)]
    best = client.infer(name, [_inputs(name, binary=binary)], outputs=wanted)
    words = best.as_numpy("probabilities")
    assert words is not None and words.shape == found.shape
    for word, row, prediction in zip(words, found, _classified(page_url, name), strict=True):
        named = [entry.decode().split(":", 2) for entry in word]
        assert [int(index) for _, index, _ in named] == list(np.argsort(-row, kind="stable"))
        assert named[0][2] == prediction["label"]
        assert len(prediction["top_k"]) == min(10, len(row))
        for entry in prediction["top_k"]:
            assert row[entry["index"]] == pytest.approx(entry["probability"], rel=1e-5)
    every = client.infer(name, [_inputs(name, binary=binary)], ARTIFACTS[name].version)
    np.testing.assert_array_equal(every.as_numpy("probabilities"), found)


def test_it_raises_errors_that_can_be_read_and_unloads_and_loads(
    client: triton.InferenceServerClient,
) -> None:
    with pytest.raises(InferenceServerException, match=r"\[422\] .*'sequence_id' .* not known"):
        client.infer("fashion-dot", [_inputs("fashion-dot", binary=True)], sequence_id=1)
    with pytest.raises(InferenceServerException, match=r"\[404\] There is no model 'nope'"):
        client.get_model_metadata("nope")
    assert not client.is_model_ready("nope")
    client.unload_model("fashion-dot")
    assert not client.is_model_ready("fashion-dot")
    client.load_model("fashion-dot")
    assert client.is_model_ready("fashion-dot")


def test_bentomls_client_calls_both_methods(page_url: str, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(png(size=28))
    with bentoml.SyncHTTPClient(page_url) as client:
        [found] = client.classify(images=[path], model="fashion-dot", top_k=2, explain=True)  # type: ignore
        assert found["model"] == "fashion-dot" and len(found["top_k"]) == 2
        assert base64.b64decode(found["explanation"]["png"]).startswith(b"\x89PNG")
        [plain] = client.classify(images=[path])  # type: ignore
        assert "explanation" not in plain
        texts = client.classify_text(texts=TEXTS, top_k=1)  # type: ignore
        assert [prediction["model"] for prediction in texts] == ["imdb-transject"] * 2
        with pytest.raises(bentoml.exceptions.BentoMLException, match="not_explainable"):
            client.classify_text(texts=TEXTS, explain=True)  # type: ignore
