"""Which names of the host are answered, and what pages of other origins may send."""

from typing import Any

import pytest
from fastapi import APIRouter
from pydantic import SecretStr, ValidationError
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from service.http.app import create_app
from service.settings import Settings
from tests.service.front import check_error

LOCAL = Settings().known_hosts
METHODS = ["GET", "POST", "DELETE", "PUT"]


def answering(hosts: list[str], scheme: str = "http") -> TestClient:
    """An application behind the middleware that answers everything."""
    router = APIRouter()
    for path in ("/livez", "/readyz", "/metrics", "/"):
        router.add_api_route(path, lambda: PlainTextResponse("fine"), methods=METHODS)
    return TestClient(create_app(router.routes, hosts=hosts), base_url=f"{scheme}://testserver")


@pytest.mark.parametrize(
    ("hosts", "host", "known"),
    [
        *((LOCAL, host, True) for host in ("localhost", "127.0.0.1:3000", "[::1]", "[::1]:3000")),
        (LOCAL, "LOCALHOST:80", True),
        *((LOCAL, host, False) for host in ("evil.example", "evil.example:3000", "127.0.0.2")),
        *((LOCAL, host, False) for host in ("localhost.evil.example", "127.0.0.1.evil.example")),
        *((LOCAL, host, False) for host in ("", "::1", "[::1", "localhost/", "a@localhost", "0")),
        (["*.example.com"], "a.example.com:1", True),
        (["*.example.com"], "example.com", False),
        (["www.example.com"], "example.com", False),
        (["a", "b"], "b", True),
        (["*"], "evil.example", True),
    ],
)
def test_names_of_others_are_refused_but_not_to_probes(
    hosts: list[str], host: str, known: bool
) -> None:
    client, headers = answering(hosts), {"host": host}
    for method in ("GET", "POST"):
        answer = client.request(method, "/", headers=headers)
        if known:
            assert answer.text == "fine"
        else:
            check_error(answer, 400, "unknown_host", "ASSAY_HOSTS")
    for probe in ("/livez", "/readyz", "/metrics"):
        assert client.get(probe, headers=headers).text == "fine"


HERE = {"host": "localhost:3000"}
SITE = {"sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    ("hosts", "headers", "own"),
    [
        (LOCAL, {}, True),
        (LOCAL, SITE, True),
        (LOCAL, {"sec-fetch-site": "none"}, True),
        *((LOCAL, {"sec-fetch-site": site}, False) for site in ("cross-site", "same-site", "")),
        # The browser's own word comes before the origin.
        (LOCAL, SITE | {"origin": "http://evil.example"}, True),
        (LOCAL, {"sec-fetch-site": "cross-site", "origin": "http://localhost:3000"}, False),
        *(
            (LOCAL, {"origin": origin}, True)
            for origin in ("http://localhost:3000", "http://127.0.0.1:3000", "http://[::1]:3000")
        ),
        *(
            (LOCAL, {"origin": origin}, False)
            for origin in (
                "http://evil.example http://localhost:8080 http://localhost null file:// http://["
                " https://localhost:3000 http://localhost:99999 http://evil.example:3000"
            ).split()
        ),
        (LOCAL, {"origin": ""}, False),
        (["*"], {"origin": "http://localhost:3000"}, True),
        (["*"], {"origin": "http://evil.example"}, False),
        (["*"], {"origin": "http://evil.example:3000"}, False),
        # A proxy ends TLS, and gives its own name or that of this host.
        (["a.example"], {"host": "a.example", "origin": "https://a.example"}, True),
        (["*"], {"host": "a.example", "origin": "https://a.example"}, True),
        (["localhost", "a.example"], {"origin": "https://a.example"}, True),
        (["localhost", "a.example"], {"origin": "http://a.example"}, False),
        (["localhost", "*.example"], {"origin": "http://a.example:3000"}, True),
    ],
)
def test_pages_of_other_origins_may_read_nothing_and_send_nothing(
    hosts: list[str], headers: dict[str, str], own: bool
) -> None:
    client, headers = answering(hosts), HERE | headers
    for method in ("POST", "DELETE", "PUT"):
        answer = client.request(method, "/", headers=headers)
        if own:
            assert answer.text == "fine"
        else:
            check_error(answer, 403, "cross_site", "ASSAY_HOSTS")
        assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.get("/", headers=headers).text == "fine"  # which the page may not read


def test_an_http_page_of_the_same_name_is_foreign_to_https() -> None:
    client = answering(["a.example"], "https")
    headers = {"host": "a.example"}
    assert client.post("/", headers=headers | {"origin": "https://a.example"}).text == "fine"
    refused = client.post("/", headers=headers | {"origin": "http://a.example"})
    check_error(refused, 403, "cross_site")


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("POST", "/v2/repository/models/fashion-dot/unload", {"content": b""}),
        ("POST", "/v1/evaluations", {"files": {"images": b"x"}}),
        ("POST", "/classify", {"files": {"images": b"x"}}),
        ("DELETE", "/v1/evaluations/x", {}),
    ],
)
def test_a_page_of_another_origin_uses_no_route(
    client: TestClient, method: str, path: str, options: dict[str, Any]
) -> None:
    evil = {"origin": "http://evil.example"}
    for headers in (evil, evil | {"sec-fetch-site": "cross-site"}):
        check_error(client.request(method, path, headers=headers, **options), 403, "cross_site")
    rebound = {"host": "evil.example", "sec-fetch-site": "same-origin"}
    for each in (method, "GET"):
        answer = client.request(each, path, headers=rebound, **options)
        check_error(answer, 400, "unknown_host")
    rows = client.post("/v2/repository/index").json()
    assert {row["state"] for row in rows} == {"READY"}


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/a"])
def test_types_that_a_page_sends_without_asking_are_refused_where_json_is_read(
    client: TestClient, kind: str
) -> None:
    repository = "/v2/repository"
    model = "models/fashion-dot"
    for path in (
        "/classify_text",
        "/v1/evaluations/cost",
        f"/v2/{model}/infer",
        f"{repository}/index",
        f"{repository}/{model}/load",
        f"{repository}/{model}/unload",
    ):
        answer = client.post(path, content=b"{}", headers={"content-type": kind})
        check_error(answer, 415, "wrong_content_type")
    # The last is what tritonclient says when it is asynchronous; otherwise it says nothing.
    for kind in ("application/json; charset=utf-8", "application/octet-stream"):
        index = client.post(f"{repository}/index", content=b"{}", headers={"content-type": kind})
        assert index.status_code == 200


def test_names_come_from_the_setting() -> None:
    assert LOCAL == ["localhost", "127.0.0.1", "[::1]"]
    keys = SecretStr("[]")
    assert Settings(api_keys=keys).known_hosts == ["*"]
    assert Settings(hosts=["a"], api_keys=keys).known_hosts == ["a"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_HOSTS", "a-b.example, *.example ,[2001:db8::1],10.0.0.1")
        known = ["a-b.example", "*.example", "[2001:db8::1]", "10.0.0.1"]
        assert Settings().known_hosts == known
        for wrong in ("a:80", "http://a", "a*", "*a", "::1", "a/b", "a b", "[::1]:80"):
            patch.setenv("ASSAY_HOSTS", wrong)
            with pytest.raises(ValidationError, match="must list names"):
                Settings()


def test_few_layers_stand_around_every_route() -> None:
    app: Any = create_app([]).build_middleware_stack()
    ours = []
    while hasattr(app, "_app") or hasattr(app, "app"):
        ours += [type(app).__name__] if type(app).__module__.startswith("service") else []
        app = getattr(app, "_app", None) or app.app
    assert ours == ["Exchange", "Origins"]
