"""The workspace for images in a real browser: predictions, attention, hostile files, keyboard."""

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.service.conftest import png
from tests.service.page import HOSTILE_NAME, Page, needs_browser

pytestmark = [needs_browser, pytest.mark.slow]


def test_pictures_are_dropped_pasted_and_classified(page: Page) -> None:
    for kind in ("drop", "paste"):
        page.give(kind, png(len(kind), size=28))
    page.until(lambda: len(page.all("#image-list .bars")) == 2, "no two predictions")
    assert {card.text for card in page.all("#image-list .file")} == {"drop.png", "paste.png"}
    assert len(page.all("#image-list .card:first-child .bar")) == 3
    page.one("#image-clear").click()
    assert page.text("#image-tally") == "No images selected."


def test_another_model_answers_anew(page: Page) -> None:
    page.take_samples()
    assert "of 4 with a label classified correctly" in page.text("#image-tally")
    page.one(".model:nth-child(2) input").click()
    page.until(lambda: len(page.all("#image-list .bars")) == 4, "no four predictions")
    rivals = [option.text for option in page.all("#image-evaluation [name=compare] option")]
    assert "fashion-elliptical" in rivals and len(rivals) == len(page.all("#image-models .model"))


def test_attention_lies_over_the_pictures_that_it_explains(page: Page) -> None:
    page.take_samples()
    page.one("#image-explain").click()
    page.until(lambda: len(page.all("#image-list canvas.attention")) == 4, "no four maps")
    shares = "const c = document.querySelector('canvas.attention'); return [c.width, c.height]"
    page.until(lambda: page.run(shares) == [224, 224], "the map is not drawn")
    pixels = (
        "const c = document.querySelector('canvas.attention');"
        "const d = c.getContext('2d').getImageData(0, 0, 224, 224).data;"
        "let low = 255, high = 0;"
        "for (let i = 0; i < d.length; i += 4) {"
        " low = Math.min(low, d[i]); high = Math.max(high, d[i]); }"
        "return high - low"
    )
    page.until(lambda: page.run(pixels) > 100, "the map is flat")
    page.one("#image-explain").click()
    assert page.all("canvas.attention") == []


def test_hostile_and_broken_files_are_named_and_stay_inert(page: Page, tmp_path: Path) -> None:
    (tmp_path / HOSTILE_NAME).write_bytes(png(size=28))
    (tmp_path / "letter.png").write_text("not an image")
    files = f"{tmp_path / HOSTILE_NAME}\n{tmp_path / 'letter.png'}"
    page.all("#files")[0].send_keys(files)
    page.until(lambda: len(page.all(".bars, .card-error")) == 2, "no two answers")
    assert page.text(".file") == HOSTILE_NAME
    assert "image" in page.text(".card-error")
    assert page.all("img[src='x']") == []
    assert page.run("return window.hacked") is None
    assert "Remove the images" in page.text("#image-evaluation .plan")
    page.one(".card:nth-child(2) .remove").send_keys(Keys.ENTER)
    assert "stability" in page.text("#image-evaluation .plan")
    page.one(".truth-select option:nth-child(2)").click()
    assert "accuracy" in page.text("#image-evaluation .plan")


def test_keyboard_alone_leads_from_samples_to_a_result(page: Page) -> None:
    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keys(Keys.TAB)
            if page.run("return document.activeElement.matches(arguments[0])", selector):
                return
        raise AssertionError(f"{selector} is not reached by the tab key")

    page.keys(Keys.TAB)
    assert page.run("return document.activeElement.textContent") == "Skip to the content"
    page.keys(Keys.ENTER)
    tab_to("#browse")
    page.keys(Keys.ENTER)
    tab_to(".thumb")
    page.keys(Keys.SPACE, Keys.ARROW_RIGHT, Keys.SPACE, Keys.ARROW_DOWN, Keys.SPACE)
    page.until(lambda: len(page.all("#image-list .bars")) == 3, "no three predictions")
    tab_to("#image-models input")
    tab_to("#image-evaluation [name=preset]")
    page.keys(Keys.ARROW_DOWN, Keys.ARROW_UP)
    assert page.run("return document.activeElement.value") == "quick"
    page.says("#image-evaluation .cost", "model evaluations")
    tab_to("#image-evaluation .start")
    page.keys(Keys.ENTER)
    page.finish()
    tab_to(".wipe input")
    page.keys(Keys.HOME)
    assert page.run("return document.activeElement.getAttribute('aria-valuetext')") == (
        "0 % adversarial"
    )
