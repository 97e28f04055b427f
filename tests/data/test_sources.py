import gzip
import io
import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data.errors import DataError
from data.images import ImageSpec
from data.sources import KNOWN, load_inputs, open_images
from tests.data.conftest import Snapshot

LABELS = ["Cat", "Big dog", "T-shirt/top"]
SPEC = ImageSpec(channels=1, height=4, width=4)


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (4, 4), value).save(stream, "PNG")
    return stream.getvalue()


def make_folder(root: Path, classes: dict[str, int]) -> Path:
    for number, (name, images) in enumerate(classes.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(images):
            (root / name / f"{index}.png").write_bytes(png(10 * number + index))
    return root


def write_idx(path: Path, array: np.ndarray, cut: int = 0) -> None:
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    content = header + array.tobytes()
    content = content[: len(content) - cut]
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


def write_parquet(path: Path, labels: list[object], *, struct: bool = True) -> Path:
    data = [png(index) for index in range(len(labels))]
    images = [{"bytes": item, "path": None} for item in data] if struct else data
    pq.write_table(pa.table({"image": images, "label": labels}), path)
    return path


def test_class_folders_find_their_labels_by_name_or_index(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "set", {"t-shirt-top": 1, "BIG-DOG": 2, "0": 1})
    images = open_images(folder, label_names=LABELS)
    assert images.labels is not None
    by_folder = {name.split("/")[0]: int(images.labels[i]) for i, name in enumerate(images.names)}
    assert by_folder == {"t-shirt-top": 2, "BIG-DOG": 1, "0": 0}
    assert load_inputs(images, SPEC).shape == (4, 1, 4, 4)
    flat = open_images(make_folder(tmp_path / "flat", {".": 1}), label_names=LABELS)
    assert flat.labels is None and flat.names == ["0.png"]


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({"horse": 1}, "^set: the class folder 'horse' is neither a label name nor an index"),
        ({"7": 1}, "^set: the class folder label 7 is out of range: there are 3 classes"),
        ({"cat": 1, "0x": 0}, "^set: the class folder 0x holds no image"),
    ],
)
def test_unknown_or_empty_class_folder_is_named(
    tmp_path: Path, classes: dict[str, int], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_images(make_folder(tmp_path / "set", classes), label_names=LABELS)


def test_zip_reads_like_its_folder(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "set", {"cat": 2, "big-dog": 1})
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for path in sorted(folder.rglob("*.png")):
            archive.write(path, path.relative_to(folder).as_posix())
    one, other = (
        open_images(source, label_names=LABELS) for source in (folder, tmp_path / "set.zip")
    )
    assert one.names == other.names
    assert np.array_equal(load_inputs(one, SPEC), load_inputs(other, SPEC))
    assert one.labels is not None and other.labels is not None
    assert np.array_equal(one.labels, other.labels)


@pytest.mark.parametrize("struct", [True, False])
def test_parquet_of_the_hub_is_read(tmp_path: Path, struct: bool) -> None:
    path = write_parquet(tmp_path / "set.parquet", [2, 0], struct=struct)
    images = open_images(path, label_names=LABELS)
    assert images.labels is not None and images.labels.tolist() == [2, 0]
    assert (load_inputs(images, SPEC)[1] == np.float32(1 / 255)).all()
    named = open_images(write_parquet(path, ["big dog"], struct=struct), label_names=LABELS)
    assert named.labels is not None and named.labels.tolist() == [1]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 7], "^test-1.parquet, row 1: label 7 is out of range: there are 3 classes"),
        ([0, None], "^test-1.parquet, row 1: the row holds no label"),
    ],
)
def test_label_of_a_parquet_file_is_named_with_file_and_row(
    tmp_path: Path, labels: list[object], message: str
) -> None:
    write_parquet(tmp_path / "test-0.parquet", [0, 1, 2])
    write_parquet(tmp_path / "test-1.parquet", labels)
    with pytest.raises(DataError, match=message):
        open_images(tmp_path, label_names=LABELS)


def test_images_of_several_parquet_files_are_named_by_file_and_row(tmp_path: Path) -> None:
    write_parquet(tmp_path / "test-0.parquet", [0, 1])
    broken = pa.table({"image": [png(0), b"text"], "label": [2, 0]})
    pq.write_table(broken, tmp_path / "test-1.parquet")
    with pytest.raises(DataError, match="test-1.parquet has other columns than test-0.parquet"):
        open_images(tmp_path, label_names=LABELS)
    write_parquet(tmp_path / "test-0.parquet", [0, 1], struct=False)
    images = open_images(tmp_path, label_names=LABELS)
    assert images.names == ["test-0/000000", "test-0/000001", "test-1/000000", "test-1/000001"]
    assert images.labels is not None and images.labels.tolist() == [0, 1, 2, 0]
    assert np.array_equal(np.asarray(images.read(1)), np.ones((4, 4)))
    with pytest.raises(DataError, match="^test-1/000001: not an image"):
        images.read(3)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([b"", None], "^test-1.parquet: row 1 holds no image bytes"),
        ([{"bytes": b""}, {"bytes": None}], "^test-1.parquet: row 1 holds no image bytes"),
        ([7], "^test-1.parquet: the column 'image' must hold bytes, got int64"),
        ([{"path": "a.png"}], "^test-1.parquet: the column 'image' must hold bytes, got struct"),
        ([], "^test-1.parquet holds no row"),
    ],
)
def test_parquet_without_images_is_named(
    tmp_path: Path, images: list[object], message: str
) -> None:
    pq.write_table(pa.table({"image": images}), tmp_path / "test-1.parquet")
    with pytest.raises(DataError, match=message):
        open_images(tmp_path)


@pytest.mark.parametrize(
    ("own_names", "expected"),
    [([*reversed(LABELS)], [2, 0]), (LABELS, [0, 2]), (["x", "y", "z"], [0, 2])],
)
def test_parquet_indices_follow_the_class_names_of_the_file(
    tmp_path: Path, own_names: list[str], expected: list[int]
) -> None:
    path = write_parquet(tmp_path / "set.parquet", [0, 2])
    features = {"info": {"features": {"label": {"names": own_names}}}}
    metadata = {"huggingface": json.dumps(features)}
    pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    images = open_images(path, label_names=LABELS)
    assert images.labels is not None and images.labels.tolist() == expected


def test_hub_source_reads_the_cached_split(snapshot: Snapshot) -> None:
    folder = snapshot("datasets--team--set") / "data"
    folder.mkdir()
    write_parquet(folder / "test-00000-of-00001.parquet", [1])
    write_parquet(folder / "train-00000-of-00001.parquet", [0, 2])
    assert len(open_images("hf:team/set", label_names=LABELS)) == 1
    assert len(open_images("hf:team/set:train", label_names=LABELS)) == 2
    with pytest.raises(DataError, match="no parquet file of the split 'valid'"):
        open_images("hf:team/set:valid")
    with pytest.raises(DataError, match="hf:team/other cannot be had"):
        open_images("hf:team/other")


def test_idx_files_are_read_plain_and_gzipped(tmp_path: Path) -> None:
    pixels = np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4)
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", pixels)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([1, 0], np.uint8))
    images = open_images(tmp_path, label_names=LABELS)
    assert images.labels is not None and images.labels.tolist() == [1, 0]
    assert np.array_equal(np.asarray(images.read(1)), pixels[1])


@pytest.mark.parametrize(
    ("images", "labels", "cut", "message"),
    [
        (2, [0] * 3, 0, r"t10k-images\S* have shape \(2, 4, 4\), the labels of t10k-l\S* \(3,\)"),
        (0, [], 0, "^t10k-images-idx3-ubyte holds no image"),
        (2, [0] * 2, 3, "t10k-images-idx3-ubyte is broken"),
        (3, [1, 5, 7], 0, "^t10k-labels-idx1-ubyte, row 1: label 5 is out of range: there are 3"),
    ],
)
def test_idx_files_that_are_broken_or_do_not_fit_are_named(
    tmp_path: Path, images: int, labels: list[int], cut: int, message: str
) -> None:
    write_idx(tmp_path / "t10k-images-idx3-ubyte", np.zeros((images, 4, 4), np.uint8), cut)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array(labels, np.uint8))
    with pytest.raises(DataError, match=message):
        open_images(tmp_path, label_names=LABELS)


def test_missing_source_says_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="nowhere is no file or folder; known names: fashion-mnist"):
        open_images("nowhere")
    monkeypatch.delenv("ASSAY_DATA", raising=False)
    with pytest.raises(DataError, match="set ASSAY_DATA"):
        open_images("fashion-mnist")


def test_broken_image_is_named_when_read(tmp_path: Path) -> None:
    for split in ("train", "test"):
        make_folder(tmp_path / split, {"cat": 2})
    (tmp_path / "train" / "cat" / "1.png").write_bytes(b"text")
    load_inputs(open_images(tmp_path, label_names=LABELS), SPEC)
    with pytest.raises(DataError, match="^train/cat/1.png: not an image"):
        load_inputs(open_images(tmp_path, split="train", label_names=LABELS), SPEC)


@pytest.mark.data
@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10"])
def test_known_data_sets_open_from_the_data_folder(name: str) -> None:
    images = open_images(name, split="test")
    assert images.labels is not None and np.bincount(images.labels).tolist() == [1000] * 10


def test_shipped_sample_carries_its_labels() -> None:
    sample = Path("artifacts/samples/fashion-mnist")
    images = open_images(sample, label_names=KNOWN["fashion-mnist"])
    assert images.labels is not None and np.bincount(images.labels).tolist() == [30] * 10
