import numpy as np
import pytest
from PIL import Image

from training.samples import crop


@pytest.mark.parametrize(
    "part", [(0.0, 0.0, 0.0, 0.0), (0.5, 0.5, 0.99, 0.99), (0.999, 0.3, 0.5, 0)]
)
def test_crop_has_the_area_and_ratio_that_were_drawn(part: tuple[float, ...]) -> None:
    cropped = crop(Image.new("L", (400, 300)), part)
    area, ratio = cropped.width * cropped.height / (400 * 300), cropped.width / cropped.height
    assert area == pytest.approx(0.08 + 0.92 * part[0], rel=0.35)
    assert 0.7 < ratio < 1.4
    assert cropped.width <= 400 and cropped.height <= 300


def test_crops_reach_every_place() -> None:
    image = Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8))
    assert crop(image, (0.0, 0.5, 0.0, 0.0)).getpixel((0, 0)) == 0
    last = crop(image, (0.0, 0.5, 0.999, 0.999))
    assert last.getpixel((last.width - 1, last.height - 1)) == 63
    assert crop(Image.new("L", (1, 1)), (0.0, 0.0, 0.9, 0.9)).size == (1, 1)
