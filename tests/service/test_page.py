"""The page in a real browser: images are dropped, evaluated, and shown with their result."""

import httpx

from tests.service.conftest import png
from tests.service.page import Page, needs_browser

pytestmark = needs_browser


def test_dropped_images_are_evaluated_and_shown_as_the_report_says(page: Page) -> None:
    assert page.text("#image-tally") == "No images selected."
    page.give("drop", png(1, size=28))
    page.give("paste", png(2, size=28))
    page.until(lambda: len(page.all("#image-list .bars")) == 2, "no two predictions")
    assert "stability is measured" in page.text("#image-evaluation .plan")
    page.one("[name=compare] option:nth-child(2)").click()
    page.says("#image-evaluation .cost", "Up to")
    page.start()
    page.finish()
    address = page.place().removeprefix("#/evaluations/")
    result = httpx.get(f"{page.url}/v1/evaluations/{address}").json()["result"]
    assert page.text(".headline") == result["headline"].replace("\u00a0", " ")
    shown = page.text("#evaluation").replace("\u00a0", " ")
    for sentence in [*result["findings"], result["comparison"]["finding"]]:
        assert " ".join(sentence.split()) in shown
    assert len(page.all(".evidence .exhibit")) == 2
    for scheme in ("light", "dark"):
        page.prefer("prefers-color-scheme", scheme)
        assert page.low_contrast() == [], scheme
    page.prefer()
