"""An endpoint in the place of an artifact: asked once, told apart from what it should be."""

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data.sources import open_images
from robustness.__main__ import main
from robustness.arguments import read_spec, settle_rate
from robustness.evaluation import evaluate
from robustness.options import parser
from robustness.remote.connection import Connection, Manners
from robustness.remote.ledger import FILE, Ledger
from robustness.report.schema import Report, read_report
from robustness.spec import EvaluationSpec
from service.settings import ROOT
from tests.robustness.conftest import image_target
from tests.robustness.remote.endpoint import Endpoint, Reply

CLASSES = 10
QUICK = ["--patience", "0.2", "--timeout", "0.5"]


def command(endpoint: Endpoint, images: Path, *more: str) -> list[str]:
    return [
        "evaluate", "--target", endpoint.url, "--model", "m", "--data", str(images), "--seed", "0",
        *(more if "--attack" in more else ("--attack", "square", "--eps", "0.05", *more)),
    ]  # fmt: skip


def square(queries: int = 40) -> list[str]:
    return ["--attack", "square", "--eps", "0.05", "0.2", "--queries", str(queries)]


def flags(report: Report) -> Any:
    kept = {"name", "eps", "robust", "confirmed", "confirmed_8bit", "adversarial_index"}
    return [
        [(s.label, m.clean.index, [a.model_dump(include=kept) for a in m.attacks])
         for m in s.models]
        for s in report.samples
    ]  # fmt: skip


def test_flags_are_those_of_the_local_run_and_nothing_is_asked_twice_but_on_purpose(
    endpoint: Endpoint,
    images: Path,
    module: torch.nn.Module,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = [*square(), "--output", str(tmp_path), "--price", "2", "--concurrency", "3"]
    assert main(command(endpoint, images, *more)) == 0
    said = capsys.readouterr()
    assert (
        "at most 3,593 inputs are sent to the endpoint: 40 images, which cost at most 7.19"
        in said.err
    )
    assert "second answers to 32" in said.err
    report = read_report(tmp_path)
    labels = [str(index) for index in range(CLASSES)]
    target = replace(image_target(module, CLASSES), labels=labels, torch_model=None)
    data = open_images(images, label_names=target.labels)
    spec = EvaluationSpec.model_validate(report.spec.model_dump())
    local = evaluate(spec, [target], data, tmp_path / "local")
    assert flags(report) == flags(local)
    assert 0 < report.summary.models[0].attacks[1].robust.top1 < 1
    # Each input once, but for the first 32, which are asked again.
    assert sorted(endpoint.seen.values())[-33:] == [1] + [2] * 32
    found = report.summary.models[0].endpoint
    assert found is not None and found.asked == len(endpoint.seen) and found.asked_again == 32
    assert found.told["server"] == "foreign 7" and found.shows == "scores"
    assert any("can change at any time" in note for note in report.notes)
    assert "m shows no gradients. Not tried: fgsm, pgd" in report.not_tried[0]
    assert report.summary.warnings == [] and endpoint.most <= 3 and max(endpoint.sizes) <= 64
    again = [str(tmp_path / "report.json"), "--target", endpoint.url, "--model", "m"]
    before = sum(endpoint.seen.values())
    assert main(["verify", *again]) == 0
    assert "CONFIRMED" in capsys.readouterr().out and sum(endpoint.seen.values()) > before
    endpoint.answers = lambda inputs: np.eye(CLASSES, dtype=np.float32)[[0] * len(inputs)]
    endpoint.parameters = {"digest": "other\x1b[2J"}
    assert main(["verify", *again]) == 1
    changed = capsys.readouterr().out
    assert "the endpoint told" in changed and "\x1b" not in changed
    assert main(["verify", again[0]]) == 2
    assert "name it with --target" in capsys.readouterr().err


def test_a_killed_evaluation_continues_without_asking_again(
    endpoint: Endpoint, images: Path, tmp_path: Path
) -> None:
    """The process is killed at the moment of a question; every question is answered once."""
    whole = tmp_path / "whole"
    more = [*square(20), "--concurrency", "1", "--limit", "8", "--output"]
    assert main(command(endpoint, images, *more, str(whole))) == 0
    once, endpoint.seen = dict(endpoint.seen), type(endpoint.seen)()
    endpoint.requests.clear()

    def kill(own: Endpoint) -> Reply | None:
        if len(own.requests) != 12:
            return None
        os.kill(process.pid, signal.SIGKILL)
        return 503, {}, b""

    endpoint.reply = kill
    line = command(endpoint, images, *more, str(tmp_path / "cut"))
    process = subprocess.Popen([sys.executable, "-m", "robustness", *line], cwd=ROOT)
    assert process.wait(60) == -signal.SIGKILL
    assert 0 < sum(endpoint.seen.values()) < sum(once.values())
    assert main(line) == 0
    assert dict(endpoint.seen) == once
    reports = [read_report(folder).to_json() for folder in (whole, tmp_path / "cut")]
    assert reports[0] | {"created": ""} == reports[1] | {"created": ""}


def test_what_an_attacker_sees_is_stated_and_used(
    endpoint: Endpoint, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for shows, code in (("top-2", 0), ("label", 2)):
        few = [*square(20), "--limit", "12"]
        more = [*few, "--shows", shows, "--output", str(tmp_path / shows)]
        assert main(command(endpoint, images, *more)) == code
    assert "needs scores, and 'm' shows the class alone" in capsys.readouterr().err
    noise = ["--attack", "corruptions:names=fog,contrast:severities=1", "hopskipjump:queries=60"]
    noise += ["--eps", "0.3", "--limit", "12"]
    more = [*noise, "--shows", "label", "--output", str(tmp_path / "noise")]
    assert main(command(endpoint, images, *more)) == 0
    found = read_report(tmp_path / "noise")
    assert found.summary.models[0].clean.top1 == 1 and found.summary.warnings == []
    assert found.summary.models[0].worst["0.3"].top1 < 1
    assert all(sample.models[0].clean.probability is None for sample in found.samples)
    # While the label comes first, the best two scores tell the whole margin.
    scores = tmp_path / "scores"
    assert main(command(endpoint, images, *few, "--output", str(scores))) == 0
    assert flags(read_report(scores)) == flags(read_report(tmp_path / "top-2"))
    gradients = ["--attack", "pgd", "--eps", "0.05"]
    assert main(command(endpoint, images, *gradients)) == 2
    assert "'pgd' follows gradients, and 'm' has none" in capsys.readouterr().err


def test_other_layouts_types_and_answers_are_understood(
    endpoint: Endpoint, images: Path, module: torch.nn.Module, tmp_path: Path
) -> None:
    """Bytes with the channel last, JSON in the place of binary tensors, probabilities, classes."""
    scores = endpoint.answers
    more = ["--attack", "corruptions:names=fog:severities=1", "--output"]

    def turned(inputs: np.ndarray) -> np.ndarray:
        pixels = inputs.transpose(0, 3, 1, 2).astype(np.float32) / 255
        return torch.softmax(torch.from_numpy(scores(pixels)), 1).numpy()

    endpoint.shape, endpoint.datatype, endpoint.extensions = [-1, 8, 8, 1], "UINT8", ()
    endpoint.answers = turned
    assert main(command(endpoint, images, *more, str(tmp_path / "bytes"))) == 0
    report = read_report(tmp_path / "bytes")
    assert report.summary.models[0].clean.top1 == 1 and report.summary.warnings == []
    assert 0 < (report.samples[0].models[0].clean.probability or 0) < 1
    endpoint.output = {"name": "class", "datatype": "INT64", "shape": [-1]}
    endpoint.answers = lambda inputs: turned(inputs).argmax(1)
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(map(str, range(CLASSES))))
    assert main(command(endpoint, images, *more, str(tmp_path / "class"))) == 2
    named = ["--labels", str(labels)]
    assert main(command(endpoint, images, *more, str(tmp_path / "named"), *named)) == 0
    assert read_report(tmp_path / "named").summary.models[0].endpoint is not None


def late(own: Endpoint) -> Reply | None:
    time.sleep(0.8)
    return None


def after_some(reply: Reply) -> Callable[[Endpoint], Reply | None]:
    """Sound answers first, then this one."""
    return lambda own: reply if len(own.requests) > 2 else None


def shaped(*shape: int, name: str = "logits") -> bytes:
    output = {"name": name, "datatype": "FP32", "shape": shape, "data": [0.5] * int(np.prod(shape))}
    return json.dumps({"outputs": [output]}).encode()


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param(late, "did not answer within 0.5 s", id="slow"),
        (after_some((200, {"content-type": "text/html"}, b"<html>")), "text/html in the place of"),
        (after_some((302, {"location": "http://a.b/"}, b"")), "redirect (302) to 'http://a.b/'"),
        (after_some((401, {}, b"who?")), "refuses the key, or the lack of one (401): 'who?'"),
        (after_some((400, {}, b"no\x1b[2J")), "status 400: 'no\ufffd[2J'"),
        (after_some((503, {"retry-after": "9"}, b"full")), "status 503: 'full'"),
        (after_some((200, {}, shaped(3, 10))), "answers 8 inputs with the shape (3, 10)"),
        (after_some((200, {}, shaped(8, 7))), "answers with 7 scores an input, and answered with"),
        (after_some((200, {}, shaped(8, 10, name="x"))), "no output 'logits'"),
        (after_some((200, {}, b'{"outputs": 3}')), "answers what is not the protocol's"),
    ],
)
def test_every_failure_is_told_and_nothing_is_lost(
    endpoint: Endpoint,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    reply: Callable[[Endpoint], Reply | None],
    told: str,
) -> None:
    endpoint.reply = reply
    noise = ["--attack", "corruptions:names=fog:severities=1"]
    more = [*noise, "--output", str(tmp_path), "--limit", "8", *QUICK]
    line = command(endpoint, images, *more)
    assert main(line) == 2
    assert told in capsys.readouterr().err
    if reply is not late:
        known = dict(endpoint.seen)
        endpoint.reply = lambda _: None
        assert main(line) == 0
        assert all(endpoint.seen[one] <= 2 for one in known)


def test_a_busy_endpoint_is_left_alone_as_long_as_it_asks(
    endpoint: Endpoint, images: Path, tmp_path: Path
) -> None:
    refused: list[float] = []

    def busy(own: Endpoint) -> Reply | None:
        if len(refused) < 2:
            refused.append(time.monotonic())
            return (429, 503)[len(refused) - 1], {"retry-after": "1"}, b""
        return None

    endpoint.reply = busy
    noise = ["--attack", "corruptions:names=fog:severities=1", "--output", str(tmp_path)]
    assert main(command(endpoint, images, *noise)) == 0
    assert refused[1] - refused[0] >= 1
    with contextlib.closing(sqlite3.connect(tmp_path / FILE)) as ledger:
        assert ledger.execute("SELECT MAX(tries) FROM questions").fetchone() == (3,)


def test_limits_are_kept(
    endpoint: Endpoint, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = ["--output", str(tmp_path)]
    assert main(command(endpoint, images, *square(), *output, "--max-queries", "90")) == 130
    assert "--max-queries 90 is used up; the same command continues" in capsys.readouterr().err
    assert sum(endpoint.seen.values()) <= 90
    with Connection(endpoint.url, Manners(per_second=100)) as connection:
        began = time.monotonic()
        for _ in range(3):
            connection.send("GET", "/v2", inputs=10)
        assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize(
    ("words", "per_second", "share"),
    [
        ("--attack square --eps 0.1 --rate 50", 50, None),
        ("--attack word-swap typos --rate 0.1", None, ["0.1"]),
        ("--attack word-swap:rate=0.2 --rate 50", 50, ["0.2"]),
        ("--attack word-swap --rate 0.1 --per-second 5", 5, ["0.1"]),
        ("--attack word-swap --rate 50", "inputs a second are --per-second N", None),
        ("--attack square --eps 0.1 --rate 5 --per-second 5", "without --per-second", None),
    ],
)
def test_rate_is_of_inputs_unless_an_attack_has_one(
    words: str, per_second: float | str | None, share: list[str] | None
) -> None:
    line = f"evaluate --target http://a --model m --data d {words}"
    arguments = parser().parse_args(line.split())
    if isinstance(per_second, str):
        with pytest.raises(ValueError, match=per_second):
            settle_rate(arguments)
        return
    settle_rate(arguments)
    first = read_spec(arguments).attacks[0]
    assert (arguments.per_second, getattr(first, "rate", None)) == (per_second, share)


def test_answers_that_change_are_flagged(endpoint: Endpoint, images: Path, tmp_path: Path) -> None:
    scores, draw = endpoint.answers, np.random.default_rng(0)
    endpoint.answers = lambda x: scores(x) + draw.normal(0, 1, (len(x), CLASSES))
    assert main(command(endpoint, images, *square(5), "--output", str(tmp_path))) == 0
    report = read_report(tmp_path)
    assert [warning.code for warning in report.summary.warnings] == ["randomised"]
    endpoint.answers = lambda x: np.where(x.mean((1, 2, 3))[:, None] > 0.5, np.nan, scores(x))
    assert main(command(endpoint, images, *square(5), "--output", str(tmp_path / "nan"))) == 0
    codes = {warning.code for warning in read_report(tmp_path / "nan").summary.warnings}
    assert "non_finite_logits" in codes


def test_labels_that_change_are_refused(
    endpoint: Endpoint, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    endpoint.extensions += ("classification",)
    endpoint.labels = [str(index) for index in range(CLASSES)]
    noise = ["--attack", "corruptions:names=fog:severities=1", "--output", str(tmp_path)]
    line = command(endpoint, images, *noise, "--limit", "8")
    assert main(line) == 0
    endpoint.labels = endpoint.labels[::-1]
    assert main(line) == 2
    assert "the classes were 0, 1, 2" in capsys.readouterr().err


def test_key_is_sent_and_shown_nowhere(
    endpoint: Endpoint,
    images: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TARGET_KEY", "s3cret-key")
    more = [*square(2), "--output", str(tmp_path), "--key-env", "TARGET_KEY"]
    assert main(command(endpoint, images, *more)) == 0
    assert all(h["authorization"] == "Bearer s3cret-key" for _, h in endpoint.requests)
    endpoint.reply = lambda _: (403, {}, b"not for s3cret-key")
    assert main([*command(endpoint, images, *more), "--seed", "1"]) == 2
    said = "".join(capsys.readouterr()).encode()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"s3cret" in content for content in [said, *written])


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("ftp://a", "must read http"),
        ("http://me:pw@a", "neither user"),
        ("http://a?key=1", "neither user"),
        ("http://127.0.0.1:1", "cannot be reached"),
        ("http://no.such.host.invalid", "has no address"),
    ],
)
def test_addresses_that_are_none_are_refused(
    url: str, told: str, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["evaluate", "--target", url, "--model", "m", "--data", str(images), *square(), *QUICK]
    assert main(line) == 2
    assert told in capsys.readouterr().err


def test_a_name_is_looked_up_once(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    port = endpoint.url.rpartition(":")[2]
    lookups: list[Any] = []

    def changing(host: str, *_: Any, **__: Any) -> Any:
        lookups.append(host)
        address = "127.0.0.1" if len(lookups) == 1 else "192.0.2.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, int(port)))]

    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo",
        lambda host, *a, **k: changing(host) if host == "rebound.test" else resolve(host, *a, **k),
    )  # fmt: skip
    with Connection(f"http://rebound.test:{port}", Manners(patience=0.1)) as connection:
        for _ in range(2):
            assert connection.get("/v2")["name"] == "foreign"
    assert lookups == ["rebound.test"]
    with pytest.raises(ValueError, match="https:// addresses only"):
        Connection(f"http://rebound.test:{port}", Manners(), key="key")


def test_ledger_is_of_one_target_and_of_one_process(tmp_path: Path) -> None:
    first = Ledger(tmp_path / FILE, {"model": "a"})
    with pytest.raises(ValueError, match="another process has it"):
        Ledger(tmp_path / FILE, {"model": "a"})
    first.answer(first.ask([b"x"]), [b"x"], np.ones((1, 2)), again=False, tries=2)
    first.ask([b"y" * 32])
    first.close()
    with pytest.raises(ValueError, match="before it changed: model was a, is b"):
        Ledger(tmp_path / FILE, {"model": "b"})
    again = Ledger(tmp_path / FILE, {"model": "a"})
    assert again.known([b"x", b"y"])[b"x"].tolist() == [1, 1]
    assert (again.counts().asked, again.counts().open, again.counts().tries) == (1, 1, 2)
    again.close()
    (tmp_path / "other").write_bytes(b"no ledger" * 100)
    with pytest.raises(ValueError, match="damaged"):
        Ledger(tmp_path / "other", {})
