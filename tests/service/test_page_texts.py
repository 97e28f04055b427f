"""The workspace for texts in a real browser, and what an evaluation of texts leaves to see."""

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.service.page import Page, needs_browser

pytestmark = [needs_browser, pytest.mark.slow]


def test_a_text_is_typed_and_classified(page: Page) -> None:
    page.one("#texts-link").click()
    page.one("#text").send_keys("What a waste of time. The plot is dull.", Keys.CONTROL, Keys.ENTER)
    page.says("#text-list .bar:first-child", "neg")
    assert len(page.all("#text-list .bar")) == 2
    page.one("#text").send_keys(" ")
    page.one("#add-text").click()
    assert "blank" in page.text("#texts-error")


def test_lines_files_and_examples_are_added(page: Page, tmp_path: Path) -> None:
    page.open("#/texts")
    page.one("#texts .model")
    page.one("#by-line").click()
    page.one("#text").send_keys("a good film\na bad film\n")
    page.one("#add-text").click()
    (tmp_path / "<b>.txt").write_text("<img src=x onerror=window.hacked=1> dull")
    page.all("#text-files")[0].send_keys(str(tmp_path / "<b>.txt"))
    page.until(lambda: len(page.all("#text-list .bars")) == 3, "no three predictions")
    assert page.all("img[src='x']") == []
    assert page.run("return window.hacked") is None
    page.one("#examples").click()
    page.until(lambda: len(page.all("#text-list .bars")) == 11, "no eleven predictions")
    assert "of 8 with a label classified correctly" in page.text("#text-tally")


def test_an_evaluation_of_texts_marks_the_changed_words(page: Page) -> None:
    page.open("#/texts")
    page.one("#texts .model")
    page.one("#examples").click()
    page.until(lambda: len(page.all("#text-list .bars")) == 8, "no eight predictions")
    for number in range(8, 3, -1):
        page.one(f"#text-list .card:nth-child({number}) .remove").click()
    page.preset("hotflip")
    page.adjust()
    page.set_field("[name=hotflip-queries]", "200")
    assert page.all("#text-evaluation [name=preset]:checked") == []
    page.says("#text-evaluation .cost", "model evaluations")
    page.start()
    page.finish()
    assert " of 3 texts correctly" in page.text(".headline") or "all 3" in page.text(".headline")
    page.until(lambda: bool(page.all(".exhibit.fallen .changed ins")), "no word is marked")
    assert page.all(".exhibit.fallen .changed del")
    assert "edits of a text" in page.text(".curve-figure")


def test_a_hostile_text_stays_inert_in_the_evidence(page: Page, places: dict[str, str]) -> None:
    page.open(places["texts"])
    assert "its 2 predictions under the worst attack with 2 edits" in page.text(".headline")
    page.until(lambda: any("<script>" in one.text for one in page.all(".changed")), "no text")
    assert page.run("return window.hacked") is None
    assert page.all("main script") == []
