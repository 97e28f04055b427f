"""The page of a service that asks for keys, in a real browser."""

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from selenium.webdriver import Chrome

from service.settings import ROOT
from tests.service.page import Page, needs_browser
from tests.service.server import serve

pytestmark = [needs_browser, pytest.mark.slow]
IMAGE = ROOT / "artifacts" / "samples" / "fashion-mnist" / "bag" / "00018.png"
KEYS = [
    {"name": "reader", "key": "reader-key-0123456789", "scopes": ["predict"]},
    {"name": "tester", "key": "tester-key-0123456789", "scopes": ["predict", "evaluate"]},
]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("guarded")
    options: dict[str, Any] = {"ASSAY_API_KEYS": json.dumps(KEYS), "ASSAY_RUNTIME": "onnx-cpu"}
    models = (str(ROOT / "artifacts" / name) for name in ("fashion-elliptical", "fashion-dot"))
    options["ASSAY_MODELS"] = os.pathsep.join(models)
    with serve(str(ROOT), cwd=folder, home=folder / "home", **options) as server:
        yield server.url


def give_key(page: Page, key: str) -> None:
    page.set_field("#key", key)
    page.one("#key-form .primary").click()


def test_a_key_is_asked_for_used_and_forgotten(driver: Chrome, guarded: str) -> None:
    page = Page(driver, guarded)
    page.open()
    assert "only with an API key" in page.text("#key-reason")
    give_key(page, "wrong-key-0123456789ab")
    page.says("#key-reason", "does not know the key")
    give_key(page, "reader-key-0123456789")
    page.take_samples()
    assert not page.shown("#masks-link")  # no segmenter is served
    # A picture loads once it is seen; the list may be drawn again meanwhile.
    loaded = (
        "return [...document.querySelectorAll('#image-list img')].every(img => {"
        " img.scrollIntoView({block: 'center'}); return img.naturalWidth > 0 })"
    )
    page.until(lambda: page.run(loaded), "no picture")
    page.one("[name=compare] option:nth-child(2)").click()
    page.says("#image-evaluation .form-error", "Use another key")
    page.one("#image-evaluation .form-error button").click()
    give_key(page, "tester-key-0123456789")
    page.says("#image-evaluation .cost", "Up to")
    page.start()
    page.finish()
    assert "by tester" in page.text(".facts")
    shows_what_the_report_says(page)
    wipe = page.one(".wipe img")
    page.run("arguments[0].scrollIntoView({block: 'center'})", wipe)
    page.until(lambda: wipe.get_property("naturalWidth") > 0, "no evidence")  # type: ignore
    assert str(wipe.get_attribute("src")).startswith("blob:")
    page.one("#key-button").click()
    page.one("#key-forget").click()
    assert page.run("return sessionStorage.length") == 0


def shows_what_the_report_says(page: Page) -> None:
    address = f"{page.url}/v1/evaluations/{page.place().removeprefix('#/evaluations/')}"
    result = httpx.get(address, headers={"x-api-key": KEYS[1]["key"]}).json()["result"]
    assert page.text(".headline") == result["headline"].replace("\u00a0", " ")
    shown = page.text("#evaluation").replace("\u00a0", " ")
    for sentence in [*result["findings"], result["comparison"]["finding"]]:
        assert " ".join(sentence.split()) in shown
    assert len(page.all(".evidence .exhibit")) == 4


def test_the_viewer_tries_routes_and_fits_a_phone(page: Page) -> None:
    page.driver.get(f"{page.url}/docs")
    page.one("[data-path='/classify_text']").click()
    page.one(".is-open .try-out__btn").click()
    page.one(".is-open .execute").click()
    page.says(".is-open .live-responses-table", '"label": "pos"')
    page.prefer("prefers-color-scheme", "dark")
    page.one("html.dark-mode")
    page.prefer()
    page.one("[data-path='/classify_text']").click()
    phone = {"width": 390, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    page.cdp("Emulation.setDeviceMetricsOverride", **phone)
    page.one(".opblock-post [data-path='/v1/evaluations']").click()
    page.one(".is-open .try-out__btn").click()
    page.one(".is-open .json-schema-form-item-add").click()
    page.one(".is-open input[type=file]").send_keys(str(IMAGE))
    assert page.width() == 390
    page.cdp("Emulation.clearDeviceMetricsOverride")
    # Swagger UI misses a component of its own for files, and shows another.
    said = [line["message"] for line in page.driver.get_log("browser")]
    assert [line for line in said if "JsonSchema_string_binary" not in line] == []
    page.one("header a[href='./']").click()
    page.one(".model")
