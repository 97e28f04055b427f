"""Our own service as the endpoint of an evaluation, over a socket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from starlette.testclient import TestClient

from robustness.__main__ import main
from robustness.report.schema import Report, read_report
from tests.robustness.remote.endpoint import Handler, served
from tests.service.tiny_artifact import LABELS, TEXT_LABELS, noise


@pytest.fixture(scope="module")
def url(client: TestClient) -> Iterator[str]:
    """The whole service in this process, behind a socket."""

    class Forwarding(Handler):
        def do_GET(self) -> None:
            headers = {key: value for key, value in self.headers.items() if key != "host"}
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            answer = client.request(self.command, self.path, content=body, headers=headers)
            self.send_response(answer.status_code)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.content)

        do_POST = do_GET

    with served(Forwarding) as address:
        yield address


def test_our_own_server_keeps_every_rule(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check-serving", url, "--junit", str(tmp_path / "junit.xml")]) == 0
    table = capsys.readouterr().out.splitlines()
    assert sum(" held " in line for line in table) > 25 and not any("broken" in x for x in table)
    assert {line.partition(":")[0] for line in table} == {
        "fashion-dot", "fashion-elliptical", "tiny-transject"
    }  # fmt: skip
    assert b'failures="0"' in (tmp_path / "junit.xml").read_bytes()


def outcomes(report: Report) -> Any:
    """Flags; typos are left out, for only who has the tokenizer knows which words are read."""
    models = [sample.models[0] for sample in report.samples]
    return [
        (
            m.clean.index,
            [(a.eps, a.confirmed, a.adversarial_index) for a in m.attacks if a.name != "typos"],
        )
        for m in models
    ]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    "kind", ["images", "texts", pytest.param("surrogate", marks=pytest.mark.slow)]
)
def test_flags_over_the_network_are_those_of_the_artifact(
    url: str, tiny_models: Path, tmp_path: Path, kind: str
) -> None:
    draw = np.random.default_rng(0)
    if kind != "texts":
        for index, pixels in enumerate(noise(20)):
            folder = tmp_path / "data" / LABELS[index % 3].replace("/", "-")
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(folder / f"{index}.png")
        data, name, folder = tmp_path / "data", "fashion-dot", "dot"
        attack = ["--attack", "square", "--eps", "0.02", "0.2", "--queries", "40"]
        if kind == "surrogate":
            attack = ["--attack", "fgsm", "pgd", "--eps", "0.02", "0.2", "--steps", "3"]
    else:
        words = "the film was a very good one and not at all as bad".split()
        rows = [f"{' '.join(draw.choice(words, 6))},{TEXT_LABELS[i % 2]}" for i in range(20)]
        (tmp_path / "data.csv").write_text("\n".join(["text,label", *rows]))
        data, name, folder = tmp_path / "data.csv", "tiny-transject", "transject"
        attack = ["--attack", "word-swap", "typos", "--queries", "30", "--edits", "2"]
        attack += ["--rate", "0.3"]
    shared = ["--data", str(data), *attack, "--output"]
    remote, local = tmp_path / "remote", tmp_path / "local"
    copy = ["--surrogate", str(tiny_models / folder)] if kind == "surrogate" else []
    copy += ["--compare", str(tiny_models / folder)] if kind == "images" else []
    assert main(["evaluate", "--target", url, "--model", name, *copy, *shared, str(remote)]) == 0
    artifact = ["--artifact", str(tiny_models / folder)]
    assert main(["evaluate", *artifact, *shared, str(local)]) == 0
    found = read_report(remote)
    assert outcomes(found) == outcomes(read_report(local))
    if kind == "images":
        comparison = found.summary.comparison
        assert comparison is not None and comparison.worst["0.02"].difference == 0
        assert comparison.first == "fashion-dot (endpoint)" and comparison.second == "fashion-dot"
    endpoint = found.summary.models[0].endpoint
    assert endpoint is not None and endpoint.told["server"].startswith("assay ")
    assert found.data.labels == (TEXT_LABELS if kind == "texts" else LABELS)
    own = ["--artifact", str(tiny_models)]
    assert main(["verify", str(remote), "--target", url, "--model", name, *own]) == 0
