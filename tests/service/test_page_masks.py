"""The page of a service with a segmenter, in a real browser."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from runtimes.artifact import Artifact
from service.settings import ROOT
from tests.service.api.test_mask_evaluations import scenes
from tests.service.conftest import png
from tests.service.front import zipped
from tests.service.page import Page, needs_browser
from tests.service.server import serve

pytestmark = [needs_browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def url(mask_artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("segmenting")
    models = [str(mask_artifact.folder), str(ROOT / "artifacts" / "fashion-dot")]
    options: dict[str, Any] = {"ASSAY_RUNTIME": "onnx-cpu"}
    options["ASSAY_MODELS"] = os.pathsep.join(models)
    with serve(str(ROOT), cwd=folder, home=folder / "home", **options) as server:
        yield server.url


def test_classes_of_pixels_are_laid_over_an_image(driver: Chrome, url: str, tmp_path: Path) -> None:
    page = Page(driver, url)
    page.open()
    page.one("#masks-link").click()
    assert page.text("#mask-models .model-name") == "tiny-segmenter"
    image = tmp_path / "<b>scene</b>.png".replace("/", "_")
    image.write_bytes(png(size=20))
    page.all("#mask-file")[0].send_keys(str(image))
    page.one(".class-map")
    assert image.name in page.text(".segmented-image figcaption")
    shares = [
        float(each.text.rstrip("%").strip()) for each in page.shown(".legend-list .bar-value")
    ]
    names = [each.text for each in page.shown(".legend-list .bar-label")]
    assert set(names) <= {"sky", "road", "car"} and shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.3)
    colors = page.run(
        "return [...document.querySelectorAll('.swatch')].map(n => n.style.background)"
    )
    assert len(set(colors)) == len(names) and all(colors)
    assert page.one(".class-map").value_of_css_property("opacity") == "0.6"
    slider = page.one("#opacity")
    slider.send_keys(Keys.END)
    assert page.one(".class-map").value_of_css_property("opacity") == "1"
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    page.all("#mask-file")[0].send_keys(str(broken))
    page.says("#mask-error", "not an image")
    assert not page.shown(".class-map") and not page.low_contrast()


def test_a_zip_of_images_and_masks_is_evaluated(driver: Chrome, url: str, tmp_path: Path) -> None:
    page = Page(driver, url)
    page.open("#/masks")
    page.says("#mask-evaluation .plan", "Choose a zip of images and masks first.")
    archive, other = tmp_path / "set.zip", tmp_path / "other.zip"
    other.write_bytes(zipped({"a.png": png()}))
    page.all("#mask-archive")[0].send_keys(str(other))
    page.says("#pairs-error", "holds no folder “images”")
    archive.write_bytes(zipped(scenes(4)))
    page.all("#mask-archive")[0].send_keys(str(archive))
    page.says("#pairs", "set.zip: 4 images with masks.")
    page.says("#mask-evaluation .plan", "Pixel accuracy and mean IoU are measured.")
    page.says("#mask-evaluation .cost", "Up to")
    page.one("#mask-evaluation .start").click()
    page.finish()
    assert "of the pixels of 4 images" in page.text(".headline")
    titles = [each.text for each in page.shown(".evidence .frame-title")]
    assert {"mask", "prediction before", "prediction after"} <= set(titles)
    page.one("button.again").click()
    assert page.place() == "#/masks" and "still selected" in page.text("#masks .again")
