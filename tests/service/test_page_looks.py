"""How the page looks in a real browser: narrow, dark, enlarged, still, and readable."""

import time

import pytest

from tests.service.page import Page, needs_browser

pytestmark = needs_browser
# For every visible piece of text: its colour against what lies behind it (WCAG 2.2, 1.4.3).
CONTRAST = """
const parse = (text) => { const [r, g, b, a = 1] = text.match(/[\\d.]+/g).map(Number);
  return { rgb: [r, g, b], a }; };
const light = (rgb) => { const [r, g, b] = rgb.map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const over = (top, below) => top.rgb.map((v, i) => v * top.a + below[i] * (1 - top.a));
function behind(element) {
  const layers = [];
  for (let node = element; node; node = node.parentElement) {
    const layer = parse(getComputedStyle(node).backgroundColor);
    layers.push(layer);
    if (layer.a === 1) break;
  }
  return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
}
const poor = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement;
  const box = element.getBoundingClientRect();
  const hidden = element.closest(".visually-hidden, :disabled, noscript, title");
  const seen = walker.currentNode.data.trim() && box.width && box.height && !hidden;
  const style = getComputedStyle(element);
  if (!seen || style.visibility === "hidden") continue;
  const below = behind(element);
  const own = over(parse(element instanceof SVGElement ? style.fill : style.color), below);
  const [high, low] = [light(own), light(below)].sort((a, b) => b - a);
  const size = parseFloat(style.fontSize);
  const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const ratio = (high + 0.05) / (low + 0.05);
  if (ratio < (large ? 3 : 4.5)) {
    poor.push(`${ratio.toFixed(2)} ${element.className}: ${walker.currentNode.data.slice(0, 30)}`);
  }
}
return poor;
"""


VIEWS = ("#/", "#/texts", "#/evaluations", "images", "unaimed", "texts")


def fill(page: Page, places: dict[str, str], place: str) -> None:
    page.open(places.get(place, place))
    if place == "#/":
        page.take_samples()
        page.adjust()
        page.says("#image-trial .cost", "Up to")
    elif place == "#/texts":
        page.one("#examples").click()
        page.until(lambda: len(page.all("#text-tray .bars")) == 8, "no predictions")
    else:
        page.one(".past" if place == "#/evaluations" else ".downloads")
    time.sleep(0.3)  # the curve is drawn after the layout


def test_phone_shows_everything_without_scrolling_sideways(
    page: Page, places: dict[str, str]
) -> None:
    page.cdp(
        "Emulation.setDeviceMetricsOverride",
        width=360,
        height=740,
        deviceScaleFactor=1,
        mobile=True,
    )
    try:
        for place in VIEWS:
            fill(page, places, place)
            assert page.width() == 360, place
    finally:
        page.cdp("Emulation.clearDeviceMetricsOverride")


def test_twice_enlarged_text_still_fits(page: Page, places: dict[str, str]) -> None:
    try:
        for place in VIEWS:
            fill(page, places, place)
            page.cdp(
                "Emulation.setDeviceMetricsOverride",
                width=640,
                height=450,
                deviceScaleFactor=2,
                mobile=False,
            )
            time.sleep(0.3)
            assert page.width() <= 640, place
            page.cdp("Emulation.clearDeviceMetricsOverride")
    finally:
        page.cdp("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_lies_behind_it(
    page: Page, places: dict[str, str], scheme: str
) -> None:
    page.cdp(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-color-scheme", "value": scheme}],
    )
    try:
        for place in VIEWS:
            fill(page, places, place)
            assert page.run(CONTRAST) == [], place
        paper = page.run("return getComputedStyle(document.body).backgroundColor")
        assert (paper == "rgb(14, 19, 21)") == (scheme == "dark")
    finally:
        page.cdp("Emulation.setEmulatedMedia", features=[])


def test_nothing_moves_for_those_who_ask_for_stillness(page: Page) -> None:
    page.cdp(
        "Emulation.setEmulatedMedia",
        features=[{"name": "prefers-reduced-motion", "value": "reduce"}],
    )
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
        page.cdp("Emulation.setEmulatedMedia", features=[])


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
