"""`python -m docs.pictures [FOLDER]`: take the pictures of the page anew, with Chromium.

A server of its own evaluates shipped models on shipped samples; its predictions and figures are
what the pictures show. Takes some minutes.
"""

import io
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from service.settings import ROOT
from tests.service.page import Page, browser
from tests.service.server import serve

# Width, and height where the end of a figure does not give it.
SIZES = {
    "page": (1280, 0),
    "page-dark": (1280, 763),
    "page-evidence": (1280, 781),
    "page-images": (1280, 1713),
    "page-language": (1280, 1060),
    "page-phone": (390, 0),
    "page-segmentation": (1280, 620),
    "page-texts": (1280, 579),
    "report": (1000, 0),
}
SAMPLES = ROOT / "artifacts" / "samples" / "fashion-mnist"
_REVIEW = (
    "This is one of the best films I have ever seen. The acting is wonderful, the story is a bit "
    "slow, and the ending is quite a bicycle. I would recommend it to anyone who likes AAA movies."
)
_MARGIN = 24  # above what a picture begins with
_LOADED = """
const seen = [...document.images].filter((image) => {
  const { top, bottom, width } = image.getBoundingClientRect();
  return width && bottom > 0 && top < innerHeight;
});
return seen.every((image) => image.complete && image.naturalWidth)
  && !document.querySelector('.card-wait');
"""


def take(page: Page, folder: Path, name: str, top: str = "body") -> None:
    """Write a picture of the window, scrolled to an element."""
    width, height = SIZES[name]
    _resize(page, width, height or 900)
    if not height:
        end = "return arguments[0].getBoundingClientRect().bottom + scrollY"
        _resize(page, width, round(page.run(end, page.one(".curve-figure"))) + _MARGIN)
    script = "scrollTo(0, arguments[0].getBoundingClientRect().top + scrollY - arguments[1])"
    page.run(script, page.one(top), _MARGIN)
    page.run("document.activeElement.blur()")
    page.until(lambda: page.run(_LOADED), "a picture is not loaded", seconds=60)
    png = page.driver.get_screenshot_as_png()
    page.cdp("Emulation.clearDeviceMetricsOverride")
    with Image.open(io.BytesIO(png)) as image:
        few = image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1)
    few.save(folder / f"{name}.png", optimize=True)


def _resize(page: Page, width: int, height: int) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    page.cdp("Emulation.setDeviceMetricsOverride", **size)


def images(page: Page, folder: Path) -> None:
    """Predictions, the form, and a comparison of two models with its report."""
    page.one("#image-models [value=fashion-elliptical-adv]").click()
    page.one("#browse").click()
    for thumb in page.all(".thumb:nth-child(-n+2)"):
        thumb.click()
    page.one("#image-explain").click()
    count = len(page.all("#image-list .card"))
    maps = "#image-list canvas.attention"
    page.until(lambda: len(page.all(maps)) == count, "no maps", seconds=90)
    page.one("#browse").click()
    take(page, folder, "page-images")
    page.preset("curve")
    page.adjust()
    page.one("[name=compare]").send_keys("fashion-elliptical")
    page.says("#image-evaluation .plan", "2 models")
    time.sleep(3)  # the cost is asked for after a moment
    page.says("#image-evaluation .cost", "Up to")
    page.prefer("prefers-color-scheme", "dark")
    take(page, folder, "page-dark", "#image-evaluation")
    page.prefer()
    page.start()
    page.one(".headline", seconds=400)
    for name in ("page", "page-phone"):
        take(page, folder, name)
    page.one("#evidence-attention").click()
    take(page, folder, "page-evidence", ".evidence")
    page.driver.get(f"{page.url}/{page.place().replace('#', 'v1')}/report.html")
    take(page, folder, "report")


def texts(page: Page, folder: Path) -> None:
    """Words that HotFlip exchanges."""
    page.open("#/texts")
    page.one("#examples").click()
    page.preset("hotflip")
    page.start()
    page.one(".headline", seconds=400)
    page.until(lambda: len(page.all(".changed ins")) > 0, "no word is marked")
    take(page, folder, "page-texts", ".evidence")


def language(page: Page, folder: Path) -> None:
    """The words of a text, by how they surprise a model."""
    page.open("#/language")
    page.one("#score-text").send_keys(_REVIEW)
    page.one("#score").click()
    page.one("#score-result .toggle").click()
    take(page, folder, "page-language")


def classes(page: Page, folder: Path) -> None:
    """The classes of the pixels of a scene."""
    page.open("#/masks")
    with tempfile.TemporaryDirectory() as made:
        file = Path(made) / "scene.png"
        _scene().save(file)
        page.all("#mask-file")[0].send_keys(str(file))
        page.one(".class-map")
        take(page, folder, "page-segmentation", "#mask-models")


def _scene() -> Image.Image:
    """A bag of the samples over colors that run into each other."""
    side, path = 128, sorted((SAMPLES / "bag").glob("*.png"))[0]
    rise = np.linspace(60, 200, side)
    red, green = np.meshgrid(rise, rise)
    pixels = np.stack([red, green, np.full_like(red, 150)], axis=-1).astype(np.uint8)
    with Image.open(path) as image:
        item = np.asarray(image.convert("L").resize((96, 96), Image.Resampling.BILINEAR))
    spot = pixels[16:112, 16:112]
    spot[item > 16] = item[item > 16, None]
    return Image.fromarray(pixels)


def main(arguments: Sequence[str]) -> int:
    """Take all of them."""
    folder = Path(arguments[0]) if arguments else ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as made:
        home = Path(made) / "home"
        with (
            serve(str(ROOT), cwd=Path(made), home=home, ASSAY_RUNTIME="onnx-cpu") as server,
            browser(Path(made)) as driver,
        ):
            page = Page(driver, server.url)
            driver.set_window_size(1280, 900)
            page.cdp("Emulation.setScrollbarsHidden", hidden=True)
            page.open()
            images(page, folder)
            texts(page, folder)
            language(page, folder)
            classes(page, folder)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
