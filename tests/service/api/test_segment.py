"""`POST /segment`, and what else knows segmenters."""

import base64
import io
from collections.abc import Iterator

import httpx2
import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from data.images import class_color as color
from data.images import decode_image, to_input
from runtimes.artifact import Artifact
from runtimes.registry import open_runtime
from service.settings import Settings
from tests.service.conftest import png, serving
from tests.service.front import check_error


@pytest.fixture(scope="module")
def segmenting(
    mask_artifact: Artifact, tiny_models: object, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestClient]:
    """The service with a segmenter beside its other models."""
    state = tmp_path_factory.mktemp("segmenting")
    models = [tiny_models, mask_artifact.folder]
    given = {"models": models, "state": state, "runtime": "onnx-cpu"}
    with serving(Settings.model_validate(given)) as client:
        yield client


def _post(client: TestClient, *images: bytes, **fields: str) -> httpx2.Response:
    files = [("image", (f"{i}.png", image)) for i, image in enumerate(images)]
    return client.post("/segment", files=files, data=fields)


def test_every_pixel_has_the_class_that_the_runtime_gives_it(
    segmenting: TestClient, mask_artifact: Artifact
) -> None:
    image = png(size=20)
    answer = _post(segmenting, image)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-assay-model"] == "tiny-segmenter:1"
    found = answer.json()
    inputs = to_input(decode_image(image), mask_artifact.image_spec)[None]
    expected = open_runtime(mask_artifact).predict(inputs)[0].argmax(0)
    shown = Image.open(io.BytesIO(base64.b64decode(found["png"])))
    assert shown.mode == "P"
    np.testing.assert_array_equal(np.asarray(shown), expected)
    assert (found["height"], found["width"]) == expected.shape
    assert [each["label"] for each in found["legend"]] == mask_artifact.labels
    for each in found["legend"]:
        assert each["share"] == pytest.approx((expected == each["index"]).mean())
        assert each["color"] == f"#{bytes(color(each['index'])).hex()}"
    colors = np.asarray(shown.convert("RGB")).reshape(-1, 3)
    assert {tuple(one) for one in colors} == {color(i) for i in np.unique(expected)}
    given = np.asarray(decode_image(base64.b64decode(found["input"]))) / 255
    np.testing.assert_allclose(given, inputs[0, 0], atol=0.5 / 255 + 1e-6)


def test_colors_are_those_of_pascal_voc_and_all_differ() -> None:
    assert [color(i) for i in (0, 1, 2, 15, 20)] == [
        (0, 0, 0), (128, 0, 0), (0, 128, 0), (192, 128, 128), (0, 64, 128),
    ]  # fmt: skip
    assert len({color(i) for i in range(256)}) == 256


def test_what_cannot_be_segmented_is_refused(segmenting: TestClient, client: TestClient) -> None:
    check_error(_post(segmenting), 422, "no_image")
    check_error(_post(segmenting, png(), png()), 422, "too_many_images")
    check_error(_post(segmenting, b"no image"), 415, "not_an_image")
    check_error(_post(segmenting, png(), top_k="1"), 422, "unknown_field")
    check_error(_post(segmenting, png(), model="fashion-dot"), 422, "wrong_task")
    check_error(_post(client, png()), 404, "unknown_model")
    wrong = segmenting.post("/classify", files={"images": png()}, data={"model": "tiny-segmenter"})
    check_error(wrong, 422, "wrong_task")


def test_models_and_the_protocol_v2_know_it(
    segmenting: TestClient, mask_artifact: Artifact
) -> None:
    (about,) = [m for m in segmenting.get("/v1/models").json() if m["name"] == "tiny-segmenter"]
    assert about["task"] == "image-segmentation" and about["default"] is True
    assert about["preprocessing"]["height"] == 8
    inputs = to_input(decode_image(png()), mask_artifact.image_spec)[None]
    tensor = {"name": "images", "datatype": "FP32", "shape": list(inputs.shape)}
    request = {"inputs": [tensor | {"data": inputs.ravel().tolist()}]}
    metadata = segmenting.get("/v2/models/tiny-segmenter").json()
    assert [each["shape"] for each in metadata["outputs"]] == [[-1, 3, 8, 8]] * 2
    answer = segmenting.post("/v2/models/tiny-segmenter/infer", json=request).json()
    outputs = {
        each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in answer["outputs"]
    }
    expected = open_runtime(mask_artifact).predict(inputs)
    np.testing.assert_allclose(outputs["logits"], expected, atol=1e-5)
    np.testing.assert_allclose(outputs["probabilities"].sum(1), 1, atol=1e-5)
    classes = {"name": "probabilities", "parameters": {"classification": 2}}
    refused = segmenting.post(
        "/v2/models/tiny-segmenter/infer", json=request | {"outputs": [classes]}
    )
    check_error(refused, 422, "invalid_parameter")
