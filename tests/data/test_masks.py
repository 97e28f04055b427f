"""Images with masks: what is read of each form, how what is broken is named, and scenes."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data.datasets import scenes
from data.datasets.scenes import PHOTOS, SIDE, SIZES
from data.errors import DataError
from data.formats.masks import zipped_masks
from data.images import ImageSpec, fit_mask, to_pixels
from data.masks import KNOWN_MASKS, open_masks
from data.sets import load_masks
from tests.exported import write_idx

LABELS = ["sky", "road", "car"]
INDICES = np.array([[0, 1, 2], [2, 255, 0]], np.uint8)  # 2 rows of 3 pixels


def encoded(array: np.ndarray, form: str) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, form)
    return stream.getvalue()


def png(array: np.ndarray, mode: str | None = None) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(array)
    if mode == "P":
        image = image.copy()
        image.putpalette([value for i in range(256) for value in (i, 0, 255 - i)])
    (image if mode in (None, "P") else image.convert(mode)).save(stream, "PNG")
    return stream.getvalue()


IMAGE = png(np.zeros((2, 3, 3), np.uint8))
JPEG = encoded(np.zeros((2, 3), np.uint8), "JPEG")
PAIRS = {"images/b.png": IMAGE, "masks/b.png": png(INDICES)}
PAIRS |= {"images/a/c.png": IMAGE, "masks/a/c.png": png(INDICES[::-1], "P")}
ADE = {"images/training/a.png": IMAGE, "annotations/training/a.png": png(INDICES % 255 + 1)}
ADE |= {"images/validation/b.png": IMAGE, "annotations/validation/b.png": png(INDICES // 2)}


def write(root: Path, files: Mapping[str, bytes]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return root


def test_pairs_are_read_by_name_and_255_is_no_class(tmp_path: Path) -> None:
    found = open_masks(write(tmp_path / "set", PAIRS), label_names=LABELS)
    assert found.names == ["a/c.png", "b.png"] and found.labels is None
    assert found.label_names == LABELS and found.origin.name == "set"
    assert np.array_equal(found.mask(0), INDICES[::-1]) and found.mask(1).dtype == np.uint8
    last = found.take([1])
    assert last.names == ["b.png"] and np.array_equal(last.mask(0), INDICES)
    assert last.take([0]).read(0).size == (3, 2)


def test_splits_are_folders_of_pairs(tmp_path: Path) -> None:
    parts = {f"{split}/{name}": PAIRS[name] for split in ("train", "test") for name in PAIRS}
    folder = write(tmp_path / "set", parts)
    found = open_masks(folder, split="train", own_split=True, label_names=LABELS)
    assert len(found) == 2 and found.origin.split == "train"
    with pytest.raises(DataError, match="has no valid split, only train, test"):
        open_masks(folder, split="valid", label_names=LABELS)


@pytest.mark.parametrize(
    ("split", "part", "expected"),
    [
        ("train", "training", INDICES % 255),
        ("valid", "validation", [[255, 255, 0], [0, 255, 255]]),
        ("test", "validation", [[255, 255, 0], [0, 255, 255]]),
    ],
)
def test_the_form_of_ade20k_counts_classes_from_one(
    tmp_path: Path, split: str, part: str, expected: np.ndarray
) -> None:
    ade = ADE | {"annotations/validation/b.png": png(np.array([[0, 0, 1], [1, 0, 0]], np.uint8))}
    found = open_masks(
        write(tmp_path / "set", ade), split=split, own_split=True, label_names=LABELS
    )
    assert np.array_equal(found.mask(0), np.asarray(expected))
    assert found.origin.split == part


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"masks/b.png": png(np.zeros((3, 3), np.uint8))},
         "^set/masks/b.png must have the size of its image, 3 x 2, got 3 x 3"),
        ({"masks/b.png": IMAGE[:30]}, "^set/masks/b.png: the image data is broken"),
        ({"masks/b.png": b""}, "^set/masks/b.png: not an image"),
        ({"images/d.png": IMAGE}, "^set/images/d.png has no mask masks/d.png"),
        ({"masks/d.png": png(INDICES)}, "^set/masks/d.png has no image in images"),
        ({"images/b.png": b"text"}, "^set/images/b.png: not an image"),
    ],
)  # fmt: skip
def test_pairs_that_do_not_fit_are_refused_when_they_are_opened(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_masks(write(tmp_path / "set", PAIRS | files), label_names=LABELS)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (png(INDICES + (INDICES == 1) * np.uint8(6)),
         "^set/masks/b.png, row 0, column 1: 7 is no class: they are 0 to 2, and 255 is ignored"),
        (png(np.zeros((2, 3, 3), np.uint8)), r"b.png must hold an index for each pixel, .* \(RGB"),
        (JPEG, "^set/masks/b.png must be a PNG: other formats change indices"),
    ],
)  # fmt: skip
def test_masks_that_are_none_are_named_when_they_are_read(
    tmp_path: Path, mask: bytes, message: str
) -> None:
    found = open_masks(write(tmp_path / "set", PAIRS | {"masks/b.png": mask}), label_names=LABELS)
    with pytest.raises(DataError, match=message):
        found.mask(1)


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (PAIRS, {}, "set: masks name classes by index, so their names must be given"),
        (PAIRS, {"label_names": ["x"]}, "set: masks need from 2 to 255 classes, got 1"),
        (PAIRS, {"label_names": LABELS, "own_split": True}, "is the same for every split"),
        ({"images/a.png": IMAGE}, {"label_names": LABELS}, "must hold images/ and masks/, or"),
        ({"images/training/a.png": IMAGE, "annotations/training/a.png": png(INDICES)},
         {"label_names": LABELS}, "set needs the folder images/validation"),
    ],
)  # fmt: skip
def test_folders_without_masks_or_names_are_refused(
    tmp_path: Path, files: dict[str, bytes], options: dict[str, object], message: str
) -> None:
    folder = write(tmp_path / "set", files)
    with pytest.raises(DataError, match=message):
        open_masks(folder, **options)  # pyright: ignore[reportArgumentType] - of several types


def zipped(files: Mapping[str, bytes], root: str = "") -> zipfile.ZipFile:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in files.items():
            archive.writestr(root + name, content)
    return zipfile.ZipFile(stream)


@pytest.mark.parametrize("root", ["", "scenes/"])
def test_a_zip_of_pairs_is_read_like_a_folder(root: str) -> None:
    extra = {f"{root}masks/notes.txt": b"", "__MACOSX/images/._b.png": b""}
    found = zipped_masks(zipped({root + k: v for k, v in PAIRS.items()} | extra), "a.zip", LABELS)
    assert found.names == ["a/c.png", "b.png"] and found.read(1) == IMAGE
    assert np.array_equal(found.mask_reader(0), INDICES[::-1])
    assert np.array_equal(found.mask_reader(1), INDICES)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.png": IMAGE}, "^a.zip must hold the folders images and masks"),
        ({"images/d.png": IMAGE}, "^a.zip must hold the folders images and masks"),
        (PAIRS | {"masks/b.png": png(np.zeros((3, 3), np.uint8))},
         "^a.zip/masks/b.png must have the size of its image, 3 x 2, got 3 x 3"),
        (PAIRS | {"images/d.png": IMAGE}, "^a.zip/images/d.png has no mask masks/d.png"),
    ],
)  # fmt: skip
def test_a_zip_without_pairs_is_refused(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(DataError, match=message):
        zipped_masks(zipped(files), "a.zip", LABELS)


def test_a_mask_of_too_many_pixels_is_refused() -> None:
    found = zipped_masks(zipped(PAIRS), "a.zip", LABELS, max_pixels=5)
    with pytest.raises(DataError, match="^a.zip/masks/b.png: 3 x 2 is more than 5 pixels"):
        found.mask_reader(1)


def test_known_sets_keep_their_classes(data_folder: Path) -> None:
    assert len(KNOWN_MASKS["ade20k"]) == 150 and KNOWN_MASKS["ade20k"][149] == "flag"
    write(data_folder / "ade20k", ADE)
    assert open_masks("ADE20K", split="train").label_names == KNOWN_MASKS["ade20k"]
    with pytest.raises(DataError, match="the classes of ade20k are .* got .'sky'"):
        open_masks("ade20k", label_names=LABELS)
    with pytest.raises(DataError, match="fashion-scenes needs imagenet1k-1perclass-224.parquet in"):
        open_masks("fashion-scenes")
    with pytest.raises(DataError, match="known names: fashion-scenes, ade20k"):
        open_masks("cityscapes")


@pytest.mark.parametrize("resize", [None, 24])
def test_a_mask_goes_where_its_image_goes(resize: int | None) -> None:
    mask = np.arange(12, dtype=np.uint8).reshape(3, 4).repeat(10, 0).repeat(10, 1)
    spec = ImageSpec(channels=1, height=18, width=24, resample="bilinear", resize=resize)
    pixels = to_pixels(Image.fromarray(mask * 20), spec)[0]
    found = fit_mask(mask, spec)
    assert found.shape == pixels.shape
    same = pixels == found * 20  # but at the borders of classes, which `to_pixels` mixes
    assert same.mean() > 0.5
    assert np.abs(pixels / 20 - found).max() <= 5


@pytest.fixture
def few(data_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with 20 photos of one color each, and square items whose gray tells their index."""
    colors = np.arange(20, dtype=np.uint8)
    photos = [png(np.full((70, 90, 3), (0, color, 250), np.uint8)) for color in colors]
    table = pa.table({"image": photos, "label": [0] * 20})
    pq.write_table(table, data_folder / PHOTOS)
    for split, count in (("train", 40), ("t10k", 20)):
        first = 100 if split == "train" else 200
        pixels = np.arange(first, first + count, dtype=np.uint8)[:, None, None].repeat(28, 1)
        pixels = pixels.repeat(28, 2)
        write_idx(data_folder / f"{split}-images-idx3-ubyte.gz", pixels)
        write_idx(data_folder / f"{split}-labels-idx1-ubyte.gz", np.arange(count) % 10)
    monkeypatch.setattr(scenes, "SIZES", {"train": 200, "valid": 30, "test": 30})
    return data_folder


def seen(split: str) -> tuple[set[int], set[int]]:
    """Photos and items in the scenes of a split, told by their colors."""
    photos, items = set[int](), set[int]()
    found = open_masks("fashion-scenes", split=split)
    for index in range(len(found)):
        image, mask = np.asarray(found.read(index)), found.mask(index)
        assert image.shape == (SIDE, SIDE, 3) and mask.shape == (SIDE, SIDE)
        photos |= set(image[mask == 0][:, 1].tolist())
        grays = image[mask > 0]
        assert (grays == grays[:, :1]).all() and np.array_equal(
            mask[mask > 0], 1 + (grays[:, 0] - 100) % 10
        )
        items |= set(grays[:, 0].tolist())
    return photos, items


def test_scenes_share_neither_photos_nor_items_between_splits(few: Path) -> None:
    (photos, items), valid, test = (seen(split) for split in ("train", "valid", "test"))
    assert len(photos) > 10 and not photos & valid[0] and not (photos | valid[0]) & test[0]
    assert items == set(range(100, 120)) and valid[1] <= set(range(120, 140))
    assert test[1] <= set(range(200, 220))


def test_a_scene_depends_on_its_split_and_index_alone(few: Path) -> None:
    one, other = (open_masks("fashion-scenes", split="valid") for _ in range(2))
    spec = ImageSpec(channels=3, height=SIDE, width=SIDE)
    masks = load_masks(one, spec)
    for index in (5, 0, 5):
        assert other.read(index).tobytes() == one.read(index).tobytes()
        assert np.array_equal(other.mask(index), masks[index])
        assert {0} < set(np.unique(masks[index]).tolist()) <= set(range(11))
    assert len({mask.tobytes() for mask in masks}) == len(masks)


@pytest.mark.data
def test_scenes_are_there_with_the_classes_of_fashion_mnist() -> None:
    found = open_masks("fashion-scenes")
    assert len(found) == SIZES["test"] and found.label_names == KNOWN_MASKS["fashion-scenes"]
    counts = np.bincount(np.stack([found.mask(i) for i in range(40)]).ravel(), minlength=11)
    assert (counts > 0).all() and 0.5 < counts[0] / counts.sum() < 0.9
