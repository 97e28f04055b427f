"""The page in a real browser, against a real server with the shipped models and samples."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from service.settings import ROOT
from tests.service.conftest import png, wait_until
from tests.service.test_server import serve

CHROMIUM = Path("/usr/bin/chromium")
DRIVER = Path("/usr/bin/chromedriver")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
HOSTILE = "<img src=x onerror=window.hacked=1>.png"

pytestmark = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()),
    reason="chromium and chromedriver are not installed",
)


class Page:
    """What a person does on the page, and what they see."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, place: str = "#/") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/{place}")

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str, *, seconds: float = 20) -> WebElement:
        """The first such element that is visible, once there is one."""

        def visible() -> list[WebElement]:
            return [element for element in self.all(selector) if element.is_displayed()]

        self.until(lambda: bool(visible()), f"no visible {selector}", seconds=seconds)
        return visible()[0]

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = 20) -> None:
        if not wait_until(condition, seconds=seconds):
            pytest.fail(f"{what}; the page shows:\n{self.driver.find_element(By.ID, 'main').text}")

    def width(self) -> int:
        return self.driver.execute_script("return document.documentElement.scrollWidth")

    def set_field(self, selector: str, value: str) -> None:
        field = self.one(selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(value)

    def take_samples(self) -> None:
        """Two boots and two bags, through the gallery."""
        self.one("#browse").click()
        for shelf in (1, 2):
            for thumb in (1, 2):
                self.one(f".shelf:nth-child({shelf}) .thumb:nth-child({thumb})").click()
        self.until(lambda: len(self.all(".bars")) == 4, "no four predictions")

    def finish(self) -> None:
        self.one(".verdict", seconds=90)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("page")
    with serve(str(ROOT), cwd=folder, home=folder / "home") as server:
        yield server.url


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    browser.set_page_load_timeout(30)
    yield browser
    browser.quit()


@pytest.fixture
def page(driver: webdriver.Chrome, url: str) -> Iterator[Page]:
    """The bench, freshly opened; nothing may be refused by the policy or break in a script."""
    driver.set_window_size(1280, 900)
    driver.get_log("browser")  # forget older lines
    page = Page(driver, url)
    page.open()
    page.one(".model")
    yield page
    lines = driver.get_log("browser")
    # A status that the page shows as a message is also logged by the browser.
    faults = [line for line in lines if "the server responded with a status" not in line["message"]]
    assert faults == []
    entries = "performance.getEntriesByType('resource').map(entry => entry.name)"
    fetched = driver.execute_script(f"return {entries}")
    assert [name for name in fetched if not name.startswith((url, f"blob:{url}"))] == []


def test_a_text_is_typed_and_classified(page: Page) -> None:
    page.one("#texts-link").click()
    field = page.one("#text")
    field.send_keys("What a waste of time. The plot is dull and the acting is terrible.")
    page.one("#text-form button").click()
    assert page.text("#text-answer .bar:first-child").startswith("neg")
    assert len(page.all("#text-answer .bar")) == 2
    field.clear()
    field.send_keys(" ", Keys.CONTROL, Keys.ENTER)
    assert "The text holds nothing" in page.text("#text-error")
    assert page.all("#text-answer .bar") == []


def test_trial_from_samples_to_evidence(page: Page) -> None:
    page.take_samples()
    assert "All labels are known" in page.text("#plan")
    page.set_field("[name=pgd-steps]", "3")
    page.one("[name=compare] option:nth-child(2)").click()
    page.one("#start").send_keys(Keys.ENTER)
    page.finish()
    assert " of 4 images correctly" in page.text(".verdict") or "all 4" in page.text(".verdict")
    assert len(page.all(".figures")) == 2
    assert len(page.all(".figures tbody tr")) == 2 * (1 + 2 * 2)  # clean, 2 attacks at 2 radii
    assert len(page.all(".exhibit")) == 4
    for kind in ("clean", "perturbation", "adversarial"):
        picture = page.one(f".exhibit img[src*='{kind}']")
        page.driver.execute_script("arguments[0].scrollIntoView()", picture)  # they load lazily
        page.until(lambda shown=picture: shown.get_property("naturalWidth") in (8, 28), kind)
    assert page.one("a[download]").get_attribute("href").endswith("/report.json")  # type: ignore
    whole = page.one("#whole-report").get_attribute("href")
    assert whole is not None and whole.endswith("/report.html")
    page.driver.get(whole)
    assert "fashion-elliptical" in page.text("h1")
    assert page.one("header").value_of_css_property("border-bottom-style") == "solid"
    picture = page.one("img")
    assert picture.get_property("naturalWidth") > 0  # type: ignore


POINTS = {"8/255": 8 / 255, "0.03": 0.03, "L2:0.5": 0.5, "L2:1/2": 0.5, "edits:5": 5, "fog:3": 3}


def test_points_of_every_kind_have_a_value(page: Page) -> None:
    code = (
        "const done = arguments[1]; import('./words.js').then((words) =>"
        " done(arguments[0].map((point) => words.epsValue(point))));"
    )
    assert page.driver.execute_async_script(code, list(POINTS)) == list(POINTS.values())


def run_to_the_end(url: str, spec: dict[str, Any], **form: Any) -> str:
    """The place on the page of an evaluation that has succeeded."""
    files = [("spec", (None, json.dumps(spec))), *form.get("files", ())]
    files += [
        (name, (None, json.dumps(form[name]))) for name in ("texts", "labels") if name in form
    ]
    location = httpx.post(f"{url}/v1/evaluations", files=files).headers["location"]

    def ended() -> bool:
        return httpx.get(f"{url}{location}", timeout=30).json()["status"] == "succeeded"

    assert wait_until(ended, seconds=60), httpx.get(f"{url}{location}").json()
    return location.replace("/v1", "#", 1)


def test_evaluations_of_every_kind_are_shown(page: Page) -> None:
    images = [("images", (f"{i}.png", png(i, size=28))) for i in range(2)]
    corruptions = {"name": "corruptions", "names": ["fog"], "severities": [3]}
    l2 = {"name": "apgd-ce", "norm": "L2", "eps": ["0.5"], "steps": 2}
    fgsm = {"name": "fgsm", "eps": ["8/255"]}
    for attacks, shown in (([corruptions], "No attack"), ([fgsm, l2, corruptions], "8/255 and L2")):
        place = run_to_the_end(page.url, {"attacks": attacks}, files=images, labels=[0, 1])
        page.open(place)
        assert shown in page.text(".verdict")
        assert "corrupted" in page.text(".readings")
        assert len(page.all(".exhibit")) == (2 if len(attacks) > 1 else 0)
    texts = ["A dull film.", "Moving and brilliantly acted."]
    spec = {"attacks": [{"name": "typos", "edits": [1], "queries": 5}]}
    page.open(run_to_the_end(page.url, spec, texts=texts))
    assert "of its 2 answers under the worst attack within 1 edit" in page.text(".verdict")
    page.open("#/evaluations")
    assert "2 texts · Typos" in page.text(".past:first-child .past-detail")


def test_hostile_and_broken_files_are_named_and_stay_inert(page: Page, tmp_path: Path) -> None:
    (tmp_path / HOSTILE).write_bytes(png(size=28))
    (tmp_path / "letter.png").write_text("not an image")
    page.driver.find_element(By.ID, "files").send_keys(
        f"{tmp_path / HOSTILE}\n{tmp_path / 'letter.png'}"
    )
    page.until(lambda: len(page.all(".bars, .card-error")) == 2, "no two answers")
    assert page.text(".file") == HOSTILE
    assert "image" in page.text(".card-error")
    assert page.all("img[src='x']") == []
    assert page.driver.execute_script("return window.hacked") is None
    assert "Remove the images" in page.text("#plan")
    page.one(".card:nth-child(2) .remove").send_keys(Keys.ENTER)
    assert "stability" in page.text("#plan")
    page.one(".truth-select option:nth-child(2)").click()
    assert "accuracy" in page.text("#plan")


def test_refusal_is_shown_in_the_words_of_the_service(page: Page) -> None:
    page.take_samples()
    page.set_field("[name=other-eps]", "2")
    page.one("#start").click()
    assert "eps must lie in (0, 1]" in page.text("#trial-error")


def test_evaluation_is_cancelled_and_deleted(page: Page) -> None:
    page.take_samples()
    page.set_field("[name=pgd-steps]", "1000")
    page.set_field("[name=other-eps]", "0.01 0.02 0.03 0.04")
    page.one("#start").click()
    page.one(".progress button").click()
    page.until(lambda: "was cancelled" in page.text("#evaluation"), "not cancelled", seconds=60)
    place = page.driver.current_url.removeprefix(f"{page.url}/")
    page.one("nav [data-view=evaluations]").click()
    row = f".past:has([href='{place}'])"
    assert page.text(f"{row} .status") == "cancelled"
    page.one(f"{row} button").send_keys(Keys.ENTER)
    page.one(f"{row} button").send_keys(Keys.ENTER)
    page.until(lambda: not page.all(row), "not deleted")
    page.open(place)
    assert "deleted" in page.text("#evaluation .error")


def test_phone_shows_everything_without_scrolling_sideways(page: Page) -> None:
    page.take_samples()
    page.one("#start").click()
    page.finish()
    result = page.driver.current_url.removeprefix(f"{page.url}/")
    metrics = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        for place, sign in (("#/", ".model"), ("#/evaluations", ".past"), (result, ".exhibit")):
            page.open(place)
            page.one(sign)
            time.sleep(0.3)  # the curve is drawn after the layout
            assert page.width() == 390, place
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
