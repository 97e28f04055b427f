"""How the page looks in a real browser: narrow, dark, enlarged, still, and readable."""

import time

import pytest

from tests.service.page import Page, needs_browser

pytestmark = [needs_browser, pytest.mark.slow]
VIEWS = ("#/", "#/texts", "#/evaluations", "images", "unaimed", "texts")


def fill(page: Page, places: dict[str, str], place: str) -> None:
    page.open(places.get(place, place))
    if place == "#/":
        page.take_samples()
        page.adjust()
        page.says("#image-evaluation .cost", "Up to")
    elif place == "#/texts":
        page.one("#examples").click()
        page.until(lambda: len(page.all("#text-list .bars")) == 8, "no predictions")
    else:
        page.one(".past" if place == "#/evaluations" else ".downloads")
    time.sleep(0.3)  # the curve is drawn after the layout


@pytest.mark.parametrize(("width", "scale", "mobile"), [(360, 1, True), (640, 2, False)])
def test_nothing_is_wider_than_a_phone_or_an_enlarged_window(
    page: Page, places: dict[str, str], width: int, scale: int, mobile: bool
) -> None:
    size = {"width": width, "height": 740, "deviceScaleFactor": scale, "mobile": mobile}
    try:
        for place in VIEWS:
            page.cdp("Emulation.setDeviceMetricsOverride", **size)
            fill(page, places, place)
            assert page.width() <= width, place
    finally:
        page.cdp("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_lies_behind_it(
    page: Page, places: dict[str, str], scheme: str
) -> None:
    page.prefer("prefers-color-scheme", scheme)
    try:
        for place in VIEWS:
            fill(page, places, place)
            assert page.low_contrast() == [], place
        paper = page.run("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(14, 19, 21)") == (scheme == "dark")
    finally:
        page.prefer()


def test_nothing_moves_for_those_who_ask_for_stillness(page: Page) -> None:
    page.prefer("prefers-reduced-motion", "reduce")
    try:
        moving = (
            "return [...document.querySelectorAll('*')].filter((node) => {"
            " const style = getComputedStyle(node);"
            " const still = /^0s(, 0s)*$/.test(style.transitionDuration);"
            " return !still || style.animationName !== 'none'"
            "}).length"
        )
        assert page.run(moving) == 0
    finally:
        page.prefer()


def test_every_field_and_button_has_a_name(page: Page) -> None:
    page.take_samples()
    page.adjust()
    unnamed = (
        "return [...document.querySelectorAll('input, select, textarea, button')].filter((node) =>"
        " !(node.labels?.length || node.textContent.trim() || node.ariaLabel"
        " || node.querySelector('img[alt]')))"
        ".map((node) => node.outerHTML)"
    )
    assert page.run(unnamed) == []
