"""The page in a real browser: what a person does on it, and what they see."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from service.settings import ROOT
from tests.service.conftest import png, wait_until

CHROMIUM = Path("/usr/bin/chromium")
DRIVER = Path("/usr/bin/chromedriver")
FLAGS = """--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run
--disable-background-networking --disable-component-update --disable-sync"""

needs_browser = pytest.mark.skipif(
    not (CHROMIUM.exists() and DRIVER.exists()),
    reason="chromium and chromedriver are not installed",
)

DROP = """
const [kind, bytes] = arguments;
const data = new DataTransfer();
data.items.add(new File([new Uint8Array(bytes)], `${kind}.png`, { type: "image/png" }));
const event = kind === "paste"
  ? new ClipboardEvent("paste", { clipboardData: data, bubbles: true })
  : new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true });
document.body.dispatchEvent(event);
"""
# For every visible piece of text: its colour against what lies behind it (WCAG 2.2, 1.4.3).
CONTRAST = """
const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
const known = new Map();
function parse(text) { // whatever the color space
  if (known.has(text)) return known.get(text);
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = text;
  pixel.fillRect(0, 0, 1, 1);
  const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data;
  known.set(text, { rgb: [r, g, b], a: a / 255 });
  return known.get(text);
}
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


@contextmanager
def browser(folder: Path) -> Iterator[webdriver.Chrome]:
    """Chromium with a profile of its own; every request it sends is recorded."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={folder / 'profile'}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    downloads = {"download.default_directory": str(folder / "downloads")}
    options.add_experimental_option("prefs", downloads)
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_page_load_timeout(30)
    try:
        yield driver
    finally:
        driver.quit()


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

    def shown(self, selector: str) -> list[WebElement]:
        return [element for element in self.all(selector) if element.is_displayed()]

    def one(self, selector: str, *, seconds: float = 20) -> WebElement:
        """The first such element that is visible, once there is one."""
        self.until(lambda: bool(self.shown(selector)), f"no visible {selector}", seconds=seconds)
        return self.shown(selector)[0]

    def text(self, selector: str) -> str:
        return self.one(selector).text

    def until(self, condition: Callable[[], bool], what: str, *, seconds: float = 20) -> None:
        if not wait_until(condition, seconds=seconds):
            pytest.fail(f"{what}; the page shows:\n{self.driver.find_element(By.ID, 'main').text}")

    def says(self, selector: str, part: str, *, seconds: float = 20) -> None:
        """Wait until an element shows these words."""
        self.until(lambda: part in self.text(selector), f"no {part!r}", seconds=seconds)

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def cdp(self, command: str, **parameters: Any) -> None:
        self.driver.execute_cdp_cmd(command, parameters)

    def requested(self) -> list[str]:
        """Addresses of all requests since the last call, as the browser's network saw them."""
        messages = [json.loads(line["message"]) for line in self.driver.get_log("performance")]
        sent = [one["message"] for one in messages]
        return [
            one["params"]["request"]["url"]
            for one in sent
            if one["method"] == "Network.requestWillBeSent"
        ]

    def keys(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        for key in keys:
            ActionChains(self.driver).send_keys(key).perform()

    def tab_to(self, selector: str) -> None:
        """Press the tab key until such an element has the focus."""
        for _ in range(60):
            self.keys(Keys.TAB)
            if self.run("return document.activeElement.matches(arguments[0])", selector):
                return
        pytest.fail(f"{selector} is not reached by the tab key")

    def set_field(self, selector: str, value: str) -> None:
        field = self.one(selector)
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys(value)

    def width(self) -> int:
        return self.run("return document.documentElement.scrollWidth")

    def place(self) -> str:
        return self.driver.current_url.removeprefix(f"{self.url}/")

    def give(self, kind: str, picture: bytes) -> None:
        """Drop or paste a picture; it is called after what was done."""
        self.run(DROP, kind, list(picture))

    def drop(self, *paths: Path) -> None:
        """Drop files and folders of the disk where pictures are taken."""
        data = {"items": [], "files": list(map(str, paths)), "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.cdp("Input.dispatchDragEvent", type=kind, x=600, y=300, data=data)

    def forget(self) -> None:
        """Forget the inputs that the browser keeps."""
        self.driver.get("about:blank")
        self.cdp("Storage.clearDataForOrigin", origin=self.url, storageTypes="indexeddb")

    def prefer(self, name: str = "", value: str = "") -> None:
        """Set a preference of the reader; forget all of them without arguments."""
        features = [{"name": name, "value": value}] if name else []
        self.cdp("Emulation.setEmulatedMedia", features=features)

    def low_contrast(self) -> list[str]:
        """Texts that stand out too little from what lies behind them."""
        return self.run(CONTRAST)

    def take_samples(self) -> None:
        """Two boots and two bags, through the gallery."""
        self.one("#browse").click()
        for position in (1, 2):
            for thumb in (1, 2):
                self.one(f".sample-class:nth-child({position}) .thumb:nth-child({thumb})").click()
        self.until(lambda: len(self.all("#image-list .bars")) == 4, "no four predictions")

    def preset(self, key: str) -> None:
        self.one(f"[name=preset][value={key}]").click()

    def adjust(self) -> None:
        """Open the fields behind the presets."""
        self.one("summary").click()

    def start(self) -> None:
        self.until(lambda: self.one(".start").is_enabled(), "cannot be started")
        self.one(".start").click()
        self.until(lambda: "#/evaluations/" in self.driver.current_url, "not started")

    def finish(self) -> None:
        self.one(".headline", seconds=90)


_FGSM = {"name": "fgsm", "eps": ["2/255", "16/255"]}
_FOG = {"name": "corruptions", "names": ["fog", "elastic_transform"], "severities": [3]}
_PAIR = {"compare_with": "fashion-dot", "gate": "robust_accuracy >= 0.99"}
HOSTILE_NAME = "<img src=x onerror=window.hacked=1>.png"
HOSTILE_TEXT = "<script>window.hacked=1</script> a dull film, badly written and boring"


def evaluations(url: str) -> dict[str, str]:
    """Where finished evaluations are shown: of images, one with a hostile name, and of texts."""
    smoothing = {"name": "smoothing", "sigma": ["0.25"], "samples": 20}
    l2 = {"name": "apgd-ce", "norm": "L2", "eps": ["0.5"], "steps": 2}
    typos = {"name": "typos", "edits": [2], "queries": 40}
    names = ("0.png", HOSTILE_NAME)
    images = [("images", (name, png(i, size=28))) for i, name in enumerate(names)]
    texts = [("texts", (None, json.dumps([HOSTILE_TEXT, "A moving film."])))]
    boots = sorted((ROOT / "artifacts" / "samples" / "fashion-mnist").glob("*/*.png"))[::20]
    samples = [("images", (path.name, path.read_bytes())) for path in boots]
    pixels = {"name": "pixel-bounds", "eps": ["0.5/255", "4/255"]}
    pgd = {"name": "pgd", "eps": ["4/255"], "steps": 3}
    pieces = {"name": "substitutions", "edits": [1]}
    asked: dict[str, tuple[dict[str, Any], list[Any]]] = {
        "images": (
            {"attacks": [_FGSM, _FOG], **_PAIR},
            images,
        ),
        "budgets": ({"attacks": [_FGSM, l2]}, images),
        "unaimed": ({"attacks": [_FOG, smoothing]}, images),
        "texts": (
            {"attacks": [typos], "gate": "robust_accuracy >= 0.5", "stop": "early"},
            texts,
        ),
        "proofs": ({"model": "patchwise", "attacks": [pgd, pixels]}, samples),
        "open": ({"model": "words", "attacks": [pieces]}, texts),
    }
    found: dict[str, str] = {}
    for name, (spec, inputs) in asked.items():
        files = [("spec", (None, json.dumps(spec))), *inputs]
        found[name] = httpx.post(f"{url}/v1/evaluations", files=files).headers["location"]

    def states() -> set[str]:
        return {httpx.get(f"{url}{place}", timeout=30).json()["status"] for place in found.values()}

    assert wait_until(lambda: states() == {"succeeded"}, seconds=240), states()
    return {name: location.replace("/v1", "#", 1) for name, location in found.items()}
