from pathlib import Path

import pytest
from PIL import Image

from data.datasets.imagenet import LABELS, WNIDS
from data.errors import DataError
from data.sources import open_images


def make_imagenet(root: Path, files: list[str]) -> Path:
    for name in files:
        path = root / "imagenet" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(path)
    return root


def test_classes_are_in_the_usual_order() -> None:
    assert len(WNIDS) == len(set(WNIDS)) == len(set(LABELS)) == 1000
    assert WNIDS == sorted(WNIDS)
    assert (WNIDS[0], LABELS[0]) == ("n01440764", "tench")
    assert (WNIDS[207], LABELS[207]) == ("n02099601", "golden retriever")


@pytest.mark.parametrize(("split", "index"), [("train", 0), ("test", 999), ("valid", 999)])
def test_class_folders_are_found_by_their_identifiers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: str, index: int
) -> None:
    root = make_imagenet(tmp_path, ["train/n01440764/a.JPEG", "val/n15075141/b.JPEG"])
    monkeypatch.setenv("ASSAY_DATA", str(root))
    images = open_images("imagenet", split=split)
    assert images.labels is not None and images.labels.tolist() == [index]
    assert images.label_names is not None and images.label_names[index] == LABELS[index]


@pytest.mark.parametrize(
    ("files", "empty", "message"),
    [
        (["train/n01440764/a.JPEG"], None, "imagenet needs the folder imagenet/val"),
        (["val/n01440764/a.JPEG"], "n01443537", "^val: the class folder n01443537 holds no image"),
        (["val/n00000000/a.JPEG"], None, "class folder 'n00000000' is neither a label name"),
        (["val/a.JPEG"], None, "imagenet/val holds images outside class folders"),
    ],
)
def test_broken_layout_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    files: list[str],
    empty: str | None,
    message: str,
) -> None:
    root = make_imagenet(tmp_path, files)
    if empty:
        (root / "imagenet" / "val" / empty).mkdir()
    monkeypatch.setenv("ASSAY_DATA", str(root))
    with pytest.raises(DataError, match=message):
        open_images("imagenet")


def test_folder_of_a_split_is_told_from_a_class_of_that_name(tmp_path: Path) -> None:
    root = make_imagenet(tmp_path, ["train/cat/a.png", "test/dog/b.png"]) / "imagenet"
    assert open_images(root, split="test", label_names=["cat", "dog"]).names == ["dog/b.png"]
    root = make_imagenet(tmp_path / "toys", ["train/a.png", "car/b.png"]) / "imagenet"
    assert len(open_images(root, split="train", label_names=["train", "car"])) == 2
