"""A client generated from the OpenAPI document runs an evaluation."""

import importlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.service.conftest import png, wait_until


@pytest.fixture
def package(page_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a package with a client of the running service."""
    (tmp_path / "config.yaml").write_text("post_hooks: []\n")
    given = {"url": f"{page_url}/docs.json", "config": str(tmp_path / "config.yaml")}
    given |= {"output-path": str(tmp_path / "assay_client"), "meta": "none"}
    options = [f"--{name}={value}" for name, value in given.items()]
    command = [sys.executable, "-m", "openapi_python_client", "generate", *options]
    subprocess.run(command, check=True, capture_output=True)
    # Without it "3and" is left, of which Python warns.
    tidy = [sys.executable, "-m", "ruff", "format", "--isolated", str(tmp_path / "assay_client")]
    subprocess.run(tidy, check=True, capture_output=True)
    monkeypatch.syspath_prepend(str(tmp_path))
    return "assay_client"


@pytest.mark.slow
def test_a_generated_client_runs_an_evaluation(package: str, page_url: str) -> None:
    def call(operation: str, **given: Any) -> Any:
        """What an operation answers, in the client's types."""
        return importlib.import_module(f"{package}.api.evaluations.{operation}").sync(
            client=client, **given
        )

    client = importlib.import_module(f"{package}.client").Client(base_url=page_url)
    models: Any = importlib.import_module(f"{package}.models")
    file = importlib.import_module(f"{package}.types").File
    images = [file(io.BytesIO(png(i, size=28)), f"{i}.png", "image/png") for i in range(2)]
    attacks = [
        models.FGSM(name="fgsm", eps=["2/255"]),
        models.Square(name="square", eps=["2/255"], queries=5),
    ]
    spec = models.EvaluationSpec(attacks=attacks, model="fashion-elliptical")
    form = models.EvaluationForm(spec=spec, images=images, labels=json.dumps(["Bag", "Coat"]))
    accepted = call("create_v1_evaluations_post", body=form)
    assert isinstance(accepted, models.Accepted), accepted

    def state() -> Any:
        return call("show_v1_evaluations_id_get", id=accepted.id, wait=10)

    assert wait_until(lambda: state().status in ("succeeded", "failed"), seconds=90)
    found = state()
    (figures,) = found.result.models
    assert (figures.name, figures.samples) == ("fashion-elliptical", 2)
    assert [attack.name for attack in figures.attacks] == ["fgsm", "square"]
    assert [type(attack) for attack in found.spec.attacks] == [models.FGSM, models.Square]
    report = call("endpoint_v1_evaluations_id_report_json_get", id=accepted.id)
    assert report.summary.to_dict() == found.result.to_dict()
    refused = call("show_v1_evaluations_id_get", id="0")
    assert isinstance(refused, models.Error) and refused.error.code == "unknown_evaluation"
    client.get_httpx_client().close()
