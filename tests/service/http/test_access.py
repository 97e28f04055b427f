"""Who may do what, over the whole service in this process."""

import itertools
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from service.http.keys import ANYONE, SCOPES, Caller
from service.http.rates import Rates
from service.http.refusal import ApiError
from service.settings import ROOT, Settings
from tests.service.conftest import ENTRIES, KEYS, LOCAL, png, serving
from tests.service.front import check_error

FREE = ["/", "/livez", "/readyz", "/docs", "/docs.json", "/schema.json", "/style.css", "/app.js"]
STRANGERS = itertools.count(1)
METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {KEYS[name]}"}


def stranger(locked: TestClient) -> TestClient:
    """A client of the same service at an address that sent nothing yet."""
    client = (f"10.0.0.{next(STRANGERS)}", 1)
    return TestClient(locked.app, base_url=LOCAL, client=client)


def test_every_documented_route_but_free_ones_is_401_without_a_key(locked: TestClient) -> None:
    asked = [key for key, _ in _operations(locked.get("/docs.json").json()) if key[0] not in FREE]
    assert len(asked) > 30
    for path, method in asked:
        missing = locked.request(method, path)
        check_error(missing, 401, "missing_key")
        assert missing.headers["www-authenticate"] == 'Bearer realm="assay"'
        wrong_key = {"x-api-key": "wrong-key-wrong-key"}
        wrong = stranger(locked).request(method, path, headers=wrong_key)
        check_error(wrong, 401, "wrong_key")
        assert "wrong-key" not in wrong.text


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": KEYS["pat"]},
        {"authorization": f"Basic {KEYS['pat']}"},
        {"authorization": "Bearer"},
        {"x-api-key": ""},
        {"x-api-key": KEYS["pat"] + "x"},
        {"x-api-key": KEYS["pat"], "authorization": f"Bearer {KEYS['ada']}"},
    ],
)
def test_a_key_in_any_other_form_is_401(locked: TestClient, headers: dict[str, str]) -> None:
    assert stranger(locked).get("/v1/models", headers=headers).status_code == 401


def test_after_five_wrong_keys_an_address_is_429(locked: TestClient) -> None:
    here, wrong = stranger(locked), {"x-api-key": "wrong-key-wrong-key"}
    for _ in range(5):
        check_error(here.get("/v1/models", headers=wrong), 401, "wrong_key")
    for headers in (wrong, bearer("ada")):  # a right guess is not told from a wrong one
        late = here.get("/v1/models", headers=headers)
        check_error(late, 429, "too_many_wrong_keys")
        assert 1 <= int(late.headers["retry-after"]) <= 12
    check_error(here.get("/v1/models"), 401, "missing_key")
    assert here.get("/livez").status_code == 200
    assert stranger(locked).get("/v1/models", headers=bearer("ada")).status_code == 200


def test_a_key_works_in_both_headers_and_within_its_scope_only(locked: TestClient) -> None:
    files = {"images": png()}
    for headers in (bearer("pat"), {"x-api-key": KEYS["pat"]}):
        assert locked.post("/classify", files=files, headers=headers).status_code == 200
    refused = locked.post("/classify", files=files, headers=bearer("eve"))
    assert check_error(refused, 403, "missing_scope") == {"scope": "predict"}
    assert locked.get("/v1/evaluations", headers=bearer("eve")).status_code == 200
    for path in ("/v1/evaluations", "/metrics"):
        check_error(locked.get(path, headers=bearer("pat")), 403, "missing_scope")
    assert locked.get("/metrics", headers=bearer("ada")).status_code == 200
    for name in ("pat", "eve", "ada"):
        for path in ("/v1/models", "/v1/models/fashion-dot", "/samples/index.json"):
            assert locked.get(path, headers=bearer(name)).status_code == 200


def test_metrics_may_be_open(settings: Settings) -> None:
    entries = SecretStr(json.dumps(ENTRIES))
    options = {"role": "evaluate", "api_keys": entries, "open_metrics": True}
    with serving(settings.model_copy(update=options)) as client:
        assert client.get("/metrics").status_code == 200


def test_too_many_requests_of_a_key_are_429(locked: TestClient) -> None:
    headers = bearer("ron")
    statuses = [locked.get("/v1/models", headers=headers).status_code for _ in range(3)]
    assert statuses == [200, 200, 429]
    late = locked.get("/v1/models", headers=headers)
    check_error(late, 429, "rate_limited")
    assert 1 <= int(late.headers["retry-after"]) <= 30
    assert locked.get("/v1/models", headers=bearer("pat")).status_code == 200
    assert locked.get("/livez", headers=headers).status_code == 200


def test_page_probes_and_docs_need_no_key_nor_do_wrong_addresses(locked: TestClient) -> None:
    page = [f"/{path.name}" for path in (ROOT / "service" / "page").iterdir() if path.is_file()]
    for path in FREE + page:
        assert locked.get(path).status_code == 200, path
    check_error(locked.get("/nowhere"), 404, "not_found")
    wrong = locked.put("/classify")
    check_error(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "OPTIONS, POST"


def test_options_are_answered_without_a_key_and_without_cors(locked: TestClient) -> None:
    preflight = {"origin": "http://evil.example", "access-control-request-method": "POST"}
    answer = locked.options("/v1/evaluations", headers=preflight)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert locked.options("/").status_code == 204
    check_error(locked.options("/nowhere"), 404, "not_found")


def test_the_document_says_what_the_running_service_needs(
    locked: TestClient, client: TestClient
) -> None:
    free = client.get("/docs.json").json()
    assert "securitySchemes" not in free["components"]
    assert not any("security" in o or "401" in o["responses"] for _, o in _operations(free))
    spec = locked.get("/docs.json").json()
    assert spec["components"]["securitySchemes"]["header"]["name"] == "X-API-Key"
    for (path, _), operation in _operations(spec):
        scopes = operation["security"][0]["bearer"] if operation["security"] else None
        assert scopes == _needed(path), path
        given = {"401", "403", "429"} & set(operation["responses"])
        assert given == (
            {"401", "403", "429"} if scopes else {"401", "429"} if scopes == [] else set()
        )
    assert {"/livez", "/readyz", "/metrics", "/schema.json"} <= set(spec["paths"])


def _needed(path: str) -> list[str] | None:
    """The scope that a route must ask for: what is not named here is for administrators."""
    if path in FREE:
        return None
    if path.endswith(("/load", "/unload")):
        return ["admin"]
    if path.startswith(("/v1/models", "/v1/attacks", "/v1/limits", "/samples")):
        return []
    predicting: dict[str, str] = dict.fromkeys(
        ("/classify", "/segment", "/score", "/v2"), "predict"
    )
    scopes = predicting | {"/v1/evaluations": "evaluate"}
    return [next((s for start, s in scopes.items() if path.startswith(start)), "admin")]


def _operations(spec: dict[str, Any]) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    return [
        ((path, method), operation)
        for path, item in spec["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    ]


ALICE = Caller(name="alice", scopes=SCOPES, requests_per_minute=6)
BOB = Caller(name="bob", scopes=SCOPES, requests_per_minute=2)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def _refused(rates: Rates, caller: Caller) -> int:
    """Seconds that a refusal tells to wait."""
    with pytest.raises(ApiError) as late:
        rates.take(caller)
    assert (late.value.status, late.value.code) == (429, "rate_limited")
    return int(late.value.headers["retry-after"])


def test_a_minutes_requests_pass_at_once_and_come_back_evenly(tmp_path: Path) -> None:
    clock = Clock()
    with closing(Rates(tmp_path / "rates", [ALICE, ANYONE, BOB], clock=clock)) as rates:
        for _ in range(6):
            rates.take(ALICE)
        assert _refused(rates, ALICE) == 10
        clock.now += 9.5
        assert _refused(rates, ALICE) == 1
        clock.now += 0.5
        rates.take(ALICE)
        assert _refused(rates, ALICE) == 10
        for _ in range(100):
            rates.take(ANYONE)
        rates.take(BOB)
        clock.now = 1.0  # the moments of an earlier boot do no harm
        rates.take(BOB)
        assert _refused(rates, BOB) == 30


def _try_key(rates: Rates, address: str, caller: Caller | None = None) -> int:
    """Seconds to wait until the next key is looked at; 0 when this one was."""
    try:
        rates.take_key(address, caller)
    except ApiError as error:
        assert (error.status, error.code) == (429, "too_many_wrong_keys")
        return int(error.headers["retry-after"])
    return 0


def test_wrong_keys_slow_an_address_but_not_those_who_used_theirs_there(tmp_path: Path) -> None:
    clock = Clock()
    files = [Rates(tmp_path / "rates", [ALICE], clock=clock) for _ in range(2)]  # two workers
    with closing(files[0]) as rates, closing(files[1]) as other:
        size = (tmp_path / "rates").stat().st_size
        assert _try_key(rates, "a", ALICE) == 0
        assert [_try_key(other, "a") for _ in range(6)] == [0, 0, 0, 0, 0, 12]
        assert _try_key(rates, "a") == 12
        assert _try_key(other, "a", ALICE) == 0 and _try_key(other, "a", BOB) == 12
        assert _try_key(rates, "b", BOB) == _try_key(rates, "b") == 0
        clock.now += 11.5
        assert _try_key(rates, "a", BOB) == 1  # a refusal is not counted
        clock.now += 0.5
        assert _try_key(rates, "a", BOB) == 0
        assert [_try_key(rates, "a") for _ in range(2)] == [0, 12]
        assert _try_key(rates, "a", BOB) == 0
        for number in range(10_000):
            _try_key(rates, f"address {number}")
        assert (tmp_path / "rates").stat().st_size == size


_WORKER = """
import sys
from pathlib import Path
from service.http.rates import Rates
from service.http.refusal import ApiError
from service.http.keys import SCOPES, Caller
caller = Caller(name="alice", scopes=SCOPES, requests_per_minute=50)
rates = Rates(Path(sys.argv[1]), [caller], clock=lambda: 1000.0)
for _ in range(40):
    try:
        rates.take(caller)
        print("passed")
    except ApiError:
        pass
"""


def test_several_workers_allow_what_one_would(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WORKER, str(tmp_path / "rates")]
    workers = [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    assert sum(worker.communicate(timeout=60)[0].count("passed") for worker in workers) == 50
