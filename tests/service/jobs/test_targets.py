"""Remote endpoints that the operator lists: described, refused, evaluated, and kept to."""

import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from robustness.__main__ import main
from service.jobs.queue import JobStore
from service.jobs.targets import read_targets
from service.jobs.worker import Evaluator
from service.predictions.registry import Registry
from service.settings import Settings
from tests.robustness.remote.endpoint import Endpoint, listening
from tests.service.conftest import serving, wait_until
from tests.service.front import check_error, pictures
from tests.service.jobs.test_worker import child_of
from tests.service.tiny_artifact import LABELS

URL = "/v1/evaluations"
KEY = "s3cret-of-the-shop"
HTML = (200, {"content-type": "text/html"}, f"<p>Hello {KEY}</p>".encode())
SQUARE = {"name": "square", "eps": ["0.02", "0.1"], "queries": 30}
WEIGHTS = np.random.default_rng(0).normal(size=(64, len(LABELS)))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    def answers(inputs: np.ndarray) -> np.ndarray:
        return inputs.reshape(-1, 64) @ WEIGHTS

    with listening(Endpoint(answers=answers, shape=[-1, 1, 8, 8])) as running:
        yield running


@pytest.fixture
def listed(
    settings: Settings, endpoint: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Settings:
    """Settings that list the endpoint as `shop`, which knows a key."""
    monkeypatch.setenv("SHOP_KEY", KEY)
    entry = {
        "url": endpoint.url,
        "model": "m",
        "labels": LABELS,
        "input": {"channels": 1, "height": 8, "width": 8},
        "key_env": "SHOP_KEY",
        "max_queries": 20_000,
        "price": 2.5,
        "patience": 5,
        "batch": 8,
    }
    path = tmp_path / "targets.yaml"
    path.write_text(json.dumps({"shop": entry}))  # which is YAML, too
    return settings.model_copy(update={"targets": path})


@contextmanager
def evaluating(settings: Settings) -> Iterator[None]:
    store = JobStore(settings.database_url)
    evaluator = Evaluator(store, settings, lost_after=3.0)
    evaluator.start()
    try:
        yield
    finally:
        evaluator.stop()
        store.close()


def send(client: TestClient, *attacks: dict[str, Any], count: int = 12, **spec: Any) -> Any:
    whole = {"model": "shop", "attacks": attacks} | spec
    fields = {"spec": json.dumps(whole), "labels": json.dumps([i % 3 for i in range(count)])}
    return client.post(URL, data=fields, files=pictures(count))


def ended(client: TestClient, place: str) -> Any:
    def finished() -> Any:
        found = client.get(place).json()
        return found if found["status"] not in ("queued", "running") else None

    return wait_until(finished)


def test_an_endpoint_is_evaluated_through_failures_and_asked_nothing_twice(
    listed: Settings, endpoint: Endpoint, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(listed) as client, evaluating(listed):
        accepted = send(client, SQUARE)
        assert accepted.status_code == 202 and endpoint.requests == []  # not asked before
        cost = accepted.json()["cost"]
        assert cost["queries"] > 12 and cost["amount"] == round(cost["queries"] * 0.0025, 2)
        place = accepted.headers["location"]
        endpoint.reply = lambda own: HTML if len(own.requests) > 4 else None
        failed = ended(client, place)
        assert failed["error"]["code"] == "endpoint_failed" and failed["continuable"]
        stars = "*" * len(KEY)
        assert failed["error"]["message"].endswith(
            f"answers with text/html in the place of JSON: '<p>Hello {stars}</p>'"
        )
        asked = len(endpoint.seen)
        endpoint.reply = lambda _: None
        assert client.post(f"{place}/continue").status_code == 202
        done = ended(client, place)
        assert done["status"] == "succeeded" and len(endpoint.seen) > asked > 0
        report = client.get(f"{place}/report.json").json()
        [model] = report["summary"]["models"]
        told = model["endpoint"]
        assert (model["name"], told["told"]["server"]) == ("shop", "foreign 7")
        assert len(endpoint.seen) == told["asked"] <= cost["queries"]
        assert sum(endpoint.seen.values()) == told["asked"] + told["asked_again"]
        assert "can change" in json.dumps(report)
        assert "foreign 7" in client.get(f"{place}/report.html").text
        shown = client.get(f"{place}/samples/0/adversarial.png?model=shop&attack=square&eps=0.1")
        assert shown.status_code == 200
    folder = listed.state / "evaluations" / place.rpartition("/")[2] / "report"
    names = listed.state.parent / "labels.json"
    names.write_text(json.dumps(LABELS))
    options = ["--target", endpoint.url, "--model", "m", "--key-env", "SHOP_KEY"]
    options += ["--labels", str(names)]
    assert main(["verify", str(folder), *options]) == 0, capsys.readouterr().out
    assert all(headers["authorization"] == f"Bearer {KEY}" for _, headers in endpoint.requests)
    written = [path for path in listed.state.rglob("*") if path.is_file()]
    assert len(written) > 5 and not any(b"s3cret" in path.read_bytes() for path in written)


@pytest.mark.slow
def test_kills_lose_no_answer_and_a_cancelled_evaluation_asks_no_more(
    listed: Settings, endpoint: Endpoint
) -> None:
    with serving(listed) as client, evaluating(listed):
        place = send(client, SQUARE | {"queries": 150}).headers["location"]
        job_id = place.rpartition("/")[2]
        for share in (60, 200):
            assert wait_until(lambda: len(endpoint.seen) > share)  # noqa: B023
            os.kill(wait_until(lambda: child_of(job_id)), signal.SIGKILL)
        assert wait_until(lambda: len(endpoint.seen) > 300)
        client.delete(place)
        assert ended(client, place)["status"] == "cancelled"
        asked = len(endpoint.requests)
        assert client.post(f"{place}/continue").status_code == 202
        report = ended(client, place) and client.get(f"{place}/report.json").json()
        told = report["summary"]["models"][0]["endpoint"]
        assert len(endpoint.requests) > asked and told["asked"] == len(endpoint.seen)
        # Beside second answers on purpose, only what was under way at an end was sent again.
        again = sum(endpoint.seen.values()) - told["asked"] - told["asked_again"]
        assert again <= 3 * 2 * 8


def test_what_an_endpoint_does_not_show_is_refused_and_nothing_else_is_asked(
    listed: Settings, endpoint: Endpoint
) -> None:
    with serving(listed) as client:
        shown = client.get("/v1/models/shop").json()
        assert shown == client.get("/v1/models").json()[-1]
        assert shown["kind"] == "remote" and shown["access"] == ["scores", "label", "none"]
        kinds = {model["name"]: model for model in client.get("/v1/models").json()}
        assert kinds["fashion-dot"]["kind"] == "catalog"
        needed = {a["access"] for a in client.get("/v1/attacks").json()}
        assert needed - set(kinds["fashion-dot"]["access"]) == {"weights", "token-wise"}
        answer = client.post("/classify", data={"model": "shop"}, files=pictures(1))
        check_error(answer, 422, "remote_model", "only evaluations ask")
        check_error(client.get("/v2/models/shop"), 422, "remote_model", "")
        pgd = {"name": "pgd", "eps": ["0.1"]}
        check_error(send(client, pgd), 422, "invalid_spec", "'shop' has none: use square")
        check_error(
            send(client, SQUARE, compare_with="fashion-dot"), 422, "invalid_spec", "compare_with"
        )
        costly = send(client, SQUARE | {"queries": 2000})
        assert check_error(costly, 422, "too_expensive", "up to .* inputs")["limit"] == 20_000
        strange = send(client, SQUARE, model=endpoint.url)
        check_error(strange, 404, "unknown_model", "")
        check_error(send(client, SQUARE, url=endpoint.url), 422, "invalid_spec", "unknown key")
        typos = {"spec": json.dumps({"model": "shop", "attacks": [{"name": "typos"}]})}
        texts = {"texts": (None, '["fine"]')}
        check_error(client.post(URL, data=typos, files=texts), 422, "wrong_task", "")
    assert endpoint.requests == []


def test_an_endpoint_must_not_have_the_name_of_a_model(listed: Settings, tiny_models: Path) -> None:
    with pytest.raises(ValueError, match="ASSAY_TARGETS must not use .* 'fashion-dot'"):
        Registry.open(listed, remote=["fashion-dot"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: {url: 'http://h', model: m, rate: 3}", "a.rate: Extra inputs"),
        ("a: {url: 'http://h', model: m}\na: {}", "the key 'a' is there twice"),
        ("A B: {url: 'http://h', model: m}", "String should match"),
        ("a: {url: 'http://u:p@h', model: m}", "url must hold neither user"),
        ("a: {url: 'http://h', model: m, shows: top-1}", "shows must be scores"),
        ("a: {url: 'http://h', model: m, labels: [x, y]}", "a: input must be given"),
        ("a: {url: 'http://h', model: m, input: text}", "a: labels must be given"),
        ("a: {url: 'http://h', model: m, mapping: none.yaml}", "none.yaml cannot be read"),
        ("a: {url: 'http://h', model: m, key_env: X, key_file: y}", "name one key"),
    ],
)
def test_a_list_that_breaks_a_rule_is_refused_at_the_start(
    tmp_path: Path, text: str, told: str
) -> None:
    path = tmp_path / "targets.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"^ASSAY_TARGETS: .*{re.escape(told)}"):
        read_targets(path)


def test_what_a_list_leaves_out_comes_from_mapping_and_surrogate(
    tmp_path: Path, tiny_models: Path
) -> None:
    (tmp_path / "one.yaml").write_text(
        "input: {kind: text}\nlabels: [neg, pos]\nanswer: {label: class}"
    )
    path = tmp_path / "targets.yaml"
    copy = {"url": "https://h", "model": "m:3", "surrogate": str(tiny_models / "elliptical")}
    mapped = {"url": "https://h", "model": "m", "mapping": "one.yaml", "key_env": "NO_SUCH_KEY"}
    path.write_text(json.dumps({"copy": copy, "mapped": mapped}))
    found = read_targets(path)
    assert found["copy"].labels == LABELS and found["copy"].access[0] == "gradient"
    assert (found["copy"].version, found["copy"].elliptical) == ("3", True)
    assert (found["mapped"].task, found["mapped"].access) == (
        "text-classification", ["label", "none"]
    )  # fmt: skip
    with pytest.raises(ValueError, match="mapped: the key is missing, .* 'NO_SUCH_KEY'"):
        found["mapped"].key()
