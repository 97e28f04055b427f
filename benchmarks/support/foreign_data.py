"""Data for classifiers from elsewhere: photos, texts, and documents drawn of texts."""

import io
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw, ImageFont

from data.datasets.known import data_folder
from data.errors import DataError
from data.sources import open_images, open_texts

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Of ImageNet: what most models of images subtract and divide by."""

_WHITE, _BLACK = (255, 255, 255), (0, 0, 0)
Labeled = Iterator[tuple[bytes | str, int | None]]


def write_data(kind: str, count: int, path: Path) -> None:
    """Write images or texts of a kind as parquet, with labels where they are known.

    Args:
        kind: "photos", "clothes", documents ("lines", "pages", "tables"), or texts: "reviews",
            "news".
        count: how many.
        path: of the file.

    Raises:
        DataError: ASSAY_DATA does not hold what they are made of.
    """
    rows = list(_KINDS[kind](count))
    columns = {"image": [{"bytes": content, "path": None} for content, _ in rows]}
    if isinstance(rows[0][0], str):
        columns = {"text": [content for content, _ in rows]}
    if rows[0][1] is not None:
        columns |= {"label": [label for _, label in rows]}
    pq.write_table(pa.table(columns), path)


def _photos(count: int) -> Labeled:
    """Photos of a thousand kinds; no model here knows these."""
    pattern = "imagenet1k-*.parquet"
    file = next(data_folder("photos").glob(pattern), None)
    if file is None:
        raise DataError(f"ASSAY_DATA must hold {pattern}")
    table = pq.read_table(file, columns=["image"])
    for row in table.take(_spread(len(table), count)).to_pylist():
        yield row["image"]["bytes"], None


def _clothes(count: int) -> Labeled:
    """Fashion-MNIST."""
    images = open_images("fashion-mnist", split="test")
    for index in _spread(len(images), count):
        label = None if images.labels is None else int(images.labels[index])
        yield _png(images.read(index)), label


def _lines(count: int) -> Labeled:
    """Lines of text as OCR cuts them out, every second one upside down."""
    for index, text in enumerate(_texts("ag_news", count)):
        image, draw = _sheet(384, 96)
        draw.text((8, 12), text[:15], _BLACK, ImageFont.load_default(42 + index % 13))
        yield _png(image.rotate(180 * (index % 2))), index % 2


def _pages(count: int) -> Labeled:
    """Pages of text, turned clockwise by 0, 90, 180 and 270 degrees."""
    for index, text in enumerate(_texts("imdb", count)):
        image, draw = _sheet(448, 448)
        size = 12 + index % 9
        lines = textwrap.wrap(text.replace("<br />", " "), 800 // size)
        font = ImageFont.load_default(size)
        draw.multiline_text((24, 24), "\n".join(lines[: 400 // (size + 5)]), _BLACK, font)
        turned = index % 4
        yield _png(image.rotate(-90 * turned)), turned


def _tables(count: int) -> Labeled:
    """Tables of words with ruled lines (0) and without (1)."""
    for index, text in enumerate(_texts("ag_news", count)):
        image, draw = _sheet(448, 448)
        words, columns, height = text.split(), 3 + index % 3, 24 + index % 13
        width, rows, open_ = 408 // columns, 408 // height, index % 2
        for row in range(rows):
            for column in range(columns):
                left, top = 20 + column * width, 20 + row * height
                word = words[(row * columns + column) % len(words)][: width // 8]
                draw.text((left + 5, top + 4), word, _BLACK, ImageFont.load_default(13))
                if not open_:
                    draw.rectangle((left, top, left + width, top + height), outline=_BLACK)
        yield _png(image), open_


def _unlabeled(name: str) -> Callable[[int], Labeled]:
    return lambda count: ((text, None) for text in _texts(name, count))


def _texts(name: str, count: int) -> Iterator[str]:
    texts = open_texts(name, split="test")
    return (texts.read(index) for index in _spread(len(texts), count))


def _spread(total: int, count: int) -> list[int]:
    return [i * total // count for i in range(count)]


def _sheet(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (width, height), _WHITE)
    return image, ImageDraw.Draw(image)


def _png(image: Image.Image) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format="PNG")
    return stream.getvalue()


_KINDS: dict[str, Callable[[int], Labeled]] = {
    "photos": _photos,
    "clothes": _clothes,
    "lines": _lines,
    "pages": _pages,
    "tables": _tables,
    "reviews": _unlabeled("imdb"),
    "news": _unlabeled("ag_news"),
}
