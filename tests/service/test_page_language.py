"""The page of a service with a language model, in a real browser."""

from collections.abc import Iterator

import httpx
import pytest
from selenium.webdriver import Chrome, Keys

from runtimes.artifact import Artifact
from service.settings import ROOT
from tests.service.page import Page, needs_browser
from tests.service.server import serve

pytestmark = [needs_browser, pytest.mark.slow]
TEXT = "the film 🤮 was <b>good</b>,\na very good film"
HEIGHTS = "return [...document.querySelectorAll('.scored .surprise')].map((one) => one.title)"


@pytest.fixture(scope="module")
def url(language_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("scoring")
    options = {"ASSAY_MODELS": language_artifact.folder, "ASSAY_RUNTIME": "onnx-cpu"}
    with serve(str(ROOT), cwd=folder, home=folder / "home", **options) as server:
        yield server.url


def test_words_of_a_text_are_coloured_by_their_surprise(driver: Chrome, url: str) -> None:
    page = Page(driver, url)
    page.open()
    page.one("#language-link").click()
    assert page.text("#language-models .model-name") == "tiny-language"
    assert "perplexity 40.00 on its test set" in page.text("#language-models .model-figure")
    page.one("#score-text").send_keys("film", Keys.CONTROL, Keys.ENTER)
    page.says("#score-error", "at least two tokens")
    page.run("arguments[0].value = arguments[1]", page.one("#score-text"), TEXT)
    page.one("#score").click()
    page.says("#score-result .headline", "Perplexity")
    assert page.one("#score-result .scored").text == TEXT and not page.all("#score-result b")
    found = httpx.post(f"{url}/score", json={"text": TEXT, "model": "tiny-language"}).json()
    bits = sum(one["surprise"] or 0 for one in found["tokens"])
    shown = [float(title.split()[0]) for title in page.run(HEIGHTS)]
    assert len(shown) == len(TEXT.split()) - 1  # the first is not predicted
    assert sum(shown) == pytest.approx(bits, abs=0.05 * len(shown))
    assert f"Perplexity {found['perplexity']:.2f}" in page.text("#score-result .headline")
    assert len(page.all(".legend .surprise")) == 5 and page.low_contrast() == []
    page.one("#score-result .toggle").click()
    assert f" {shown[0]:.1f}" in page.one("#score-result .scored").text
    page.cdp(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": "dark"}],
    )
    assert page.low_contrast() == []
    page.cdp("Emulation.setEmulatedMedia", features=[])
