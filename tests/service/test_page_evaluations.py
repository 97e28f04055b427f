"""Evaluations of images in a real browser: from the form over progress to the evidence."""

from pathlib import Path

import pytest
from selenium.webdriver.common.keys import Keys

from tests.service.page import HOSTILE_NAME, Page, needs_browser

pytestmark = [needs_browser, pytest.mark.slow]


def test_presets_fill_the_form_and_tell_their_cost(page: Page) -> None:
    page.take_samples()
    page.says("#image-evaluation .cost", "Up to")
    quick = page.text("#image-evaluation .cost")
    page.preset("paper")
    page.until(lambda: "Up to" in (said := page.text(".cost")) and said != quick, "same cost")
    page.adjust()
    ticked = [
        box.get_attribute("value") for box in page.all("#image-evaluation [name=attack]:checked")
    ]
    assert ticked == ["fgsm", "pgd", "spsa"]
    own = page.all("#image-evaluation [name=spsa-only]")[0]
    assert own.get_attribute("value") == "1/255"
    assert page.all("[name=other-eps]")[0].get_attribute("value") == "3/255 5/255 6/255"
    page.preset("corruptions")
    assert [field.get_attribute("data-budget") for field in page.shown(".budget")] == ["severities"]
    assert not page.one("[name=gate]").is_enabled()


def test_evaluation_from_samples_to_evidence(page: Page) -> None:
    page.take_samples()
    assert "All labels are known" in page.text("#image-evaluation .plan")
    page.adjust()
    page.set_field("[name=pgd-steps]", "3")
    page.one("[name=compare] option:nth-child(2)").click()
    page.set_field("[name=gate]", "1")
    page.start()
    page.finish()
    assert " of 4 images correctly" in page.text(".headline") or "all 4" in page.text(".headline")
    assert "Gate robust_accuracy >= 0.01" in page.text(".stamps")
    attacks = "[aria-label=Attacks] .figures"
    assert len(page.all(attacks)) == 2
    assert len(page.all(f"{attacks} tbody tr")) == 2 * (1 + 2 * 2 + 2)  # clean, attacks, worst
    assert len(page.all(".wide .band")) == 2 and len(page.all(".wide .thread")) == 4
    assert len(page.all("[aria-label^=Comparison] tbody tr")) == 3
    assert len(page.all(".exhibit")) == 4


def test_slider_uncovers_the_adversarial_picture(page: Page, places: dict[str, str]) -> None:
    page.open(places["images"])
    page.run("arguments[0].scrollIntoView({block: 'center'})", page.one(".wipe"))
    for picture in page.all(".exhibit:first-child img"):
        page.until(lambda shown=picture: shown.get_property("naturalWidth") > 0, "no picture")  # type: ignore
    clip = "return getComputedStyle(document.querySelector('.wipe-above')).clipPath"
    slider = page.all(".wipe input")[0]
    page.run("arguments[0].focus()", slider)
    page.keys(Keys.END)
    assert slider.get_attribute("aria-valuetext") == "100 % adversarial"
    uncovered = page.run(clip)
    page.keys(Keys.HOME)
    assert page.run(clip) != uncovered


def test_attention_is_shown_before_and_after(page: Page, places: dict[str, str]) -> None:
    page.open(places["images"])
    page.one("#evidence-attention").click()
    page.until(lambda: len(page.all(".maps canvas.attention")) == 4, "no two pairs of maps")
    captions = [caption.text for caption in page.all(".exhibit:first-child .maps figcaption")]
    assert captions == ["attention before", "attention after"]


def test_a_hostile_file_name_stays_inert_in_the_evidence(
    page: Page, places: dict[str, str]
) -> None:
    page.open(places["images"])
    page.until(lambda: len(page.all(".exhibit")) == 2, "no samples")
    names = [mark.get_attribute("title") for mark in page.all(".exhibit-line b")]
    assert set(names) == {"0.png", HOSTILE_NAME}
    assert page.all("main img[src='x']") == []
    assert page.run("return window.hacked") is None


def test_report_is_downloaded(page: Page, places: dict[str, str], tmp_path: Path) -> None:
    page.open(places["images"])
    page.cdp("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    page.one(".take [data-form='report.html']").click()

    def saved() -> bool:
        return any(path.name.endswith("report.html") for path in tmp_path.iterdir())

    page.until(saved, "no file was saved")
    assert page.one(".downloads [data-form='samples.parquet']").is_displayed()


def test_evaluations_of_every_kind_are_shown(page: Page, places: dict[str, str]) -> None:
    page.open(places["unaimed"])
    assert "without labels. Under common corruptions it keeps" in page.text(".headline")
    assert "fog" in page.text("[aria-label='Common corruptions']")
    assert "Provably correct" in page.text(".curve-figure")
    assert page.all(".exhibit") == []
    page.open(places["budgets"])
    assert "its 2 predictions under the worst attack within 16/255 or within 0.5 (l2)" in page.text(
        ".headline"
    )
    assert len(page.all(".curve-figure")) == 2
    assert len(page.all(".exhibit")) == 2
    page.open(places["images"])
    assert "corrupted" in page.text(".readings")


def test_refusal_is_shown_in_the_words_of_the_service(page: Page) -> None:
    page.take_samples()
    page.adjust()
    page.set_field("[name=other-eps]", "2")
    page.says("#image-evaluation .form-error", "eps must lie in (0, 1]")
    page.one(".start").click()
    page.says("#image-evaluation .form-error", "eps must lie in (0, 1]")


def test_progress_is_polled_where_no_stream_gets_through(page: Page) -> None:
    page.take_samples()
    page.cdp("Network.enable")
    page.cdp("Network.setBlockedURLs", urls=["*/events"])
    try:
        page.start()
        page.finish()
    finally:
        page.cdp("Network.setBlockedURLs", urls=[])
        page.driver.get_log("browser")  # the browser notes what it has blocked
