import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from robustness import ATTACKS, EvaluationSpec
from runtimes.artifact import Artifact
from service.settings import Settings
from tests.service.conftest import png, serving
from tests.service.front import FGSM, URL, check_error, pictures
from tests.service.tiny_artifact import LABELS, MAX_LEN, copy_artifact


def test_models_are_listed_with_the_default_first_and_shown_alone(
    client: TestClient, tiny_artifact: Artifact
) -> None:
    models = client.get("/v1/models").json()
    assert [(model["name"], model["default"]) for model in models] == [
        ("fashion-elliptical", True),
        ("tiny-transject", True),
        ("fashion-dot", False),
    ]
    assert models[1]["preprocessing"] == {"max_len": MAX_LEN}
    first = models[0]
    assert first["input"]["shape"] == [-1, 1, 8, 8]
    assert {"metrics", "card"} <= set(first)
    expected = {"version": "1", "task": "image-classification", "labels": LABELS}
    expected |= {"runtime": "onnx-cpu", "precision": "fp32", "digest": tiny_artifact.digest}
    assert first == first | expected | {"preprocessing": tiny_artifact.image_spec.to_dict()}
    for reference in ("fashion-dot", "fashion-dot:1"):
        assert client.get(f"/v1/models/{reference}").json() == models[2]
    check_error(client.get("/v1/models/nope"), 404, "unknown_model")


def test_a_graph_in_another_precision_is_not_offered_to_proofs(
    tiny_artifact: Artifact, tmp_path: Path
) -> None:
    half = copy_artifact(tiny_artifact, tmp_path / "models" / "half", precision="fp16")
    settings = Settings(models=[half.parent], state=tmp_path / "state", runtime="onnx-cpu")
    asked = FGSM | {"attacks": [{"name": "graph-bounds", "eps": ["1/255"]}]}
    with serving(settings) as client:
        (model,) = client.get("/v1/models").json()
        assert model["precision"] == "fp16" and "graph" not in model["access"]
        answer = client.post(URL, data={"spec": json.dumps(asked)}, files=pictures(1))
        check_error(answer, 422, "invalid_spec", "needs the graph that is served, in fp32")


def test_limits_are_the_settings_and_name_the_formats(client: TestClient) -> None:
    limits = client.get("/v1/limits").json()
    assert limits["image_formats"] == ["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"]
    assert (limits["evaluation_max_samples"], limits["max_body_mb"]) == (2000, 64)
    assert not {"state", "api_keys", "database"} & set(limits)


def test_samples_carry_the_label_a_model_knows(client: TestClient) -> None:
    assert client.get("/samples/index.json").json() == [
        {"file": "tiny/ankle-boot/00000.png", "label": "Ankle boot", "index": 0},
        {"file": "tiny/t-shirt-top/00000.png", "label": "T-shirt/top", "index": 2},
        {"file": "tiny/unheard-of/00000.png", "label": "unheard-of", "index": None},
    ]
    sample = client.get("/samples/tiny/ankle-boot/00000.png")
    assert (sample.headers["content-type"], sample.content) == ("image/png", png())
    for none in ("tiny", "tiny/ankle-boot/00000.png%00", "x" * 5000):
        check_error(client.get(f"/samples/{none}"), 404, "not_found")


def test_one_document_describes_every_route(client: TestClient) -> None:
    spec = client.get("/docs.json").json()
    paths = "/classify /v1/models /v1/models/{name} /v1/evaluations /v1/evaluations/{id}".split()
    assert {*paths, "/livez", "/readyz", "/metrics"} <= set(spec["paths"])
    operations = [op for item in spec["paths"].values() for op in item.values()]
    for operation in operations:
        assert "405" in operation["responses"]
        assert operation["summary"] and "</" not in operation["summary"]
        for status, answer in operation["responses"].items():
            if int(status) >= 400:
                assert answer == {"$ref": f"#/components/responses/Error{status}"}
    identifiers = [op["operationId"] for op in operations if "operationId" in op]
    assert len(identifiers) == len(set(identifiers))
    form = spec["components"]["schemas"]["ClassifyForm"]
    assert set(form["properties"]) == {"images", "model", "top_k", "explain", "show_input"}


def test_the_viewer_comes_from_here(client: TestClient) -> None:
    page = client.get("/docs").text
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert {"swagger-ui-bundle.js", "swagger-ui.css", "docs.js", "./"} <= set(named)
    assert all(client.get(f"/{name.partition('#')[0]}").status_code == 200 for name in named)
    assert "http" not in page


def test_every_attack_is_described_with_its_options(client: TestClient) -> None:
    found = {attack["name"]: attack for attack in client.get("/v1/attacks").json()}
    assert list(found) == list(ATTACKS)
    assert all(one["title"] and one["paper"] for one in found.values())
    own = [name for name, one in found.items() if not one["references"]]
    assert own == ["worst-pieces", "worst-words", "substitutions", "slips", "synonyms"]
    pgd = found["pgd"]
    steps = next(option for option in pgd["options"] if option["name"] == "steps")
    assert pgd == pgd | {
        "title": "PGD",
        "input": "image",
        "access": "gradient",
        "paper": "Madry et al. 2018",
        "references": ["arXiv:1706.06083"],
    }
    assert steps == steps | {"type": "integer", "default": 20, "minimum": 1}
    assert found["square"]["norms"] == ["Linf", "L2"]


def test_described_defaults_make_a_spec(client: TestClient) -> None:
    for attack in client.get("/v1/attacks").json():
        asked: dict[str, Any] = {"name": attack["name"]}
        for option in attack["options"]:
            if option["default"] is not None:
                asked[option["name"]] = option["default"]
            elif option["required"]:
                radius = "5" if attack["norms"] == ["L0"] else "1/255"
                value = {"film": "movie"} if option["type"] == "object" else [radius]
                asked[option["name"]] = (option["choices"] or [value])[0]
        EvaluationSpec.model_validate({"attacks": [asked]})


def test_an_imported_text_model_is_served(settings: Settings, imported_texts: Artifact) -> None:
    models = [*settings.models, imported_texts.folder]
    with serving(settings.model_copy(update={"models": models})) as client:
        asked = {"texts": ["a very good film"], "model": "moods"}
        [found] = client.post("/classify_text", json=asked).json()
        assert (found["model"], found["digest"]) == ("moods", imported_texts.digest)
        asked = {"name": "texts", "datatype": "BYTES", "shape": [1], "data": asked["texts"]}
        answer = client.post("/v2/models/moods/infer", json={"inputs": [asked]}).json()
        probabilities = {each["name"]: each["data"] for each in answer["outputs"]}["probabilities"]
        assert max(probabilities) == pytest.approx(found["probability"], abs=1e-5)


def test_an_imported_model_is_served_and_refuses_attacks_that_follow_gradients(
    settings: Settings, imported: Artifact
) -> None:
    models = [*settings.models, imported.folder]
    with serving(settings.model_copy(update={"models": models})) as client:
        [shown] = [m for m in client.get("/v1/models").json() if m["name"] == "foreign"]
        assert (shown["architecture"], shown["gradients"]) == (None, False)
        files = [("images", ("a.png", png(), "image/png"))]
        [found] = client.post("/classify", data={"model": "foreign"}, files=files).json()
        assert (found["model"], found["digest"]) == ("foreign", imported.digest)
        for attack, status in (("pgd", 422), ("square", 202)):
            spec = {"model": "foreign", "attacks": [{"name": attack, "eps": ["1/255"]}]}
            answer = client.post("/v1/evaluations", data={"spec": json.dumps(spec)}, files=files)
            assert answer.status_code == status, answer.text
            if status == 422:
                assert "'foreign' has none: use square" in answer.json()["error"]["message"]
