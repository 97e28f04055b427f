"""Every format of images and texts: what is read, and how what is broken is named."""

import gzip
import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data.datasets.known import IMAGENET_LABELS, WNIDS
from data.errors import ClassMismatch, DataError
from data.images import ImageSpec
from data.sets import Origin
from data.sources import KNOWN, load_inputs, open_images, open_texts
from tests.data.conftest import Snapshot
from tests.exported import idx, zipped

LABELS = ["Cat", "Big dog", "T-shirt/top"]
NEITHER = "is neither a label name nor an index"
Files = Mapping[str, bytes | str | dict[str, list[Any]]]
Opener = Callable[..., Any]


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.new("L", (4, 4), value).save(stream, "PNG")
    return stream.getvalue()


def write(root: Path, files: Files) -> Path:
    """Write files, a dict as a parquet table; what to open: the only file, or the folder."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            pq.write_table(pa.table(content), path)
        elif name.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    [*_, last] = files
    single = len(files) == 1 and Path(last).suffix in (".csv", ".json", ".parquet", ".zip")
    return root / last if single else root


DOG = {"cat/1.png": png(1), "cat/2.png": png(2), "big-dog/3.png": png(3)}
DOG_READ = {"big-dog/3.png": (3, 1), "cat/1.png": (1, 0), "cat/2.png": (2, 0)}
PIXELS = np.stack([np.full((4, 4), 5), np.full((4, 4), 6)])


@pytest.mark.parametrize(
    ("opener", "files", "expected"),
    [
        (open_images, DOG, DOG_READ),
        (open_images, {"set.zip": zipped(DOG)}, DOG_READ),
        (open_images, {"T-shirt-TOP/a.png": png(1), "0/b.png": png(2)},
         {"0/b.png": (2, 0), "T-shirt-TOP/a.png": (1, 2)}),
        (open_images, {"0.png": png(7)}, {"0.png": (7, None)}),
        (open_images, {"set.parquet": {"image": [png(1), png(2)], "label": [2, 0]}},
         {"set/000000": (1, 2), "set/000001": (2, 0)}),
        (open_images, {"set.parquet": {"image": [{"bytes": png(1), "path": None}],
                                       "label": ["big dog"]}}, {"set/000000": (1, 1)}),
        (open_images, {"test-0.parquet": {"image": [png(1), png(2)], "label": [0, 1]},
                       "test-1.parquet": {"image": [png(3)], "label": [2]}},
         {"test-0/000000": (1, 0), "test-0/000001": (2, 1), "test-1/000000": (3, 2)}),
        (open_images, {"t10k-images-idx3-ubyte.gz": gzip.compress(idx(PIXELS)),
                       "t10k-labels-idx1-ubyte": idx(np.array([1, 0]))},
         {"test/00000": (5, 1), "test/00001": (6, 0)}),
        (open_texts, {"cat/a.txt": "\ufeffbad", "big-dog/b.txt": "good", "urls.txt": "http",
                      "unsup/c.txt": "unlabeled"},
         {"big-dog/b.txt": ("good", 1), "cat/a.txt": ("bad", 0)}),
        (open_texts, {"a.txt": "one"}, {"a.txt": ("one", None)}),
        (open_texts, {"test-0.parquet": {"text": ["a", "b"], "label": [0, 1]},
                      "test-1.parquet": {"text": ["c"], "label": [2]}},
         {"test-0/000000": ("a", 0), "test-0/000001": ("b", 1), "test-1/000000": ("c", 2)}),
        (open_texts, {"s.csv": '\ufefftext,label\r\n"one, ""two""\r\nthree",cat\r\nö,2\r\n\r\n'},
         {"s/000000": ('one, "two"\r\nthree', 0), "s/000001": ("ö", 2)}),
        (open_texts, {"set.csv": "id,label,text\n7,t-shirt-top,x\n"}, {"set/000000": ("x", 2)}),
        (open_texts, {"set.csv": "text\nx\n"}, {"set/000000": ("x", None)}),
    ],
)  # fmt: skip
def test_samples_of_every_format_have_names_contents_and_labels(
    tmp_path: Path, opener: Opener, files: Files, expected: dict[str, object]
) -> None:
    samples = opener(write(tmp_path / "set", files), label_names=LABELS)
    read = [samples.read(index) for index in range(len(samples))]
    contents = [each if isinstance(each, str) else int(np.asarray(each).max()) for each in read]
    labels = [None] * len(read) if samples.labels is None else samples.labels.tolist()
    found = dict(zip(samples.names, zip(contents, labels, strict=True), strict=True))
    assert found == expected
    last = samples.take([len(read) - 1])
    assert last.names == samples.names[-1:] and np.array_equal(last.read(0), read[-1])
    if opener is open_images:
        inputs = load_inputs(samples, ImageSpec(channels=1, height=4, width=4))
        assert np.array_equal(inputs[:, 0, 0, 0], np.array(contents, np.float32) / np.float32(255))


ROW_1 = "^test-1.parquet: row 1 holds no image bytes"


@pytest.mark.parametrize(
    ("opener", "files", "message"),
    [
        (open_images, {"horse/0.png": png(0)}, f"^set: the class folder 'horse' {NEITHER}"),
        (open_images, {"7/0.png": png(0)}, "^set: .* folder label 7 is out of range: there are 3"),
        (open_images, {"cat/0.png": png(0), "0x/": b""}, "^set: .* folder 0x holds no image"),
        (open_images, {"set.json": "[]"}, "set.json must be a folder, a .zip or a .parquet file"),
        (open_images, {"set.zip": "text"}, "set.zip is not a readable zip file"),
        (open_images, {"0.parquet": {"image": [b""], "label": [0]},
                       "1.parquet": {"image": [b""] * 2, "label": [0, 7]}},
         "^1.parquet, row 1: label 7 is out of range: there are 3 classes"),
        (open_images, {"1.parquet": {"image": [b""] * 2, "label": [0, None]}},
         "^1.parquet, row 1: the row holds no label"),
        (open_images, {"0.parquet": {"image": [{"bytes": b"", "path": None}], "label": [0]},
                       "1.parquet": {"image": [b""], "label": [0]}},
         "^1.parquet has other columns than 0.parquet"),
        (open_images, {"test-1.parquet": {"image": [b"", None]}}, ROW_1),
        (open_images, {"test-1.parquet": {"image": [{"bytes": b""}, {"bytes": None}]}}, ROW_1),
        (open_images, {"1.parquet": {"image": [7]}}, "'image' must hold bytes, got int64"),
        (open_images, {"1.parquet": {"image": [{"path": "a"}]}}, "must hold bytes, got struct"),
        (open_images, {"1.parquet": {"image": []}}, "^1.parquet holds no row"),
        (open_images, {"t10k-images-idx3-ubyte": idx(PIXELS),
                       "t10k-labels-idx1-ubyte": idx(np.zeros(3))},
         r"t10k-images\S* have shape \(2, 4, 4\), the labels of t10k-l\S* \(3,\)"),
        (open_images, {"t10k-images-idx3-ubyte": idx(PIXELS[:0]),
                       "t10k-labels-idx1-ubyte": idx(np.zeros(0))},
         "^t10k-images-idx3-ubyte holds no image"),
        (open_images, {"t10k-images-idx3-ubyte": idx(PIXELS)[:-3]}, "images-idx3-ubyte is broken"),
        (open_images, {"t10k-images-idx3-ubyte": idx(PIXELS),
                       "t10k-labels-idx1-ubyte": idx(np.array([1, 5]))},
         "^t10k-labels-idx1-ubyte, row 1: label 5 is out of range: there are 3"),
        (open_texts, {"fun/a.txt": "x"}, f"^set: the class folder 'fun' {NEITHER}"),
        (open_texts, {"cat/a.txt": "x", "0/a.md": "x"}, "^the folder set/0 holds no text file"),
        (open_texts, {"a.md": "x"}, "^the folder set holds no text file"),
        (open_texts, {"set.json": "[]"}, "set.json must be a folder, a .csv or a .parquet file"),
        (open_texts, {"s.parquet": {"text": ["a", " \n"]}}, "s.parquet: row 1 holds no text"),
        (open_texts, {"s.parquet": {"text": [None, "a"]}}, "s.parquet: row 0 holds no text"),
        (open_texts, {"s.parquet": {"text": ["a"], "label": ["maybe"]}},
         f"^s.parquet, row 0: 'maybe' {NEITHER}"),
        (open_texts, {"s.parquet": {"text": [1]}}, "'text' must hold strings, got int64"),
        (open_texts, {"0.parquet": {"text": ["a"]}, "1.parquet": {"text": ["c", " "]}},
         "^1.parquet: row 1 holds no text"),
        (open_texts, {"0.parquet": {"text": ["a"], "label": [0]}, "1.parquet": {"text": ["b"]}},
         "1.parquet has other columns than 0.parquet"),
        (open_texts, {"s.parquet": {"review": ["a"]}},
         r"s.parquet has no column 'text', only \['review'\]"),
        (open_texts, {"s.parquet": b"PAR1"}, "^s.parquet is not a readable parquet file"),
        (open_texts, {"s.csv": ""}, r"s.csv has no column 'text', only \[\]"),
        (open_texts, {"s.csv": "text,label\n"}, "s.csv holds no row"),
        (open_texts, {"s.csv": "text,label\na,0\nb\n"}, "s.csv, line 3: 2 cells .* got 1"),
        (open_texts, {"s.csv": "text,label\na,0\nb,c,0\n"}, "s.csv, line 3: 2 cells .* got 3"),
        (open_texts, {"s.csv": 'text,label\n"a\nb",0\n" ",1\n'}, "line 4: the row holds no text"),
        (open_texts, {"s.csv": "text,label\na,9\n"}, "line 2: label 9 is out of range"),
        (open_texts, {"s.csv": "text,label\na,\n"}, f"s.csv, line 2: '' {NEITHER}"),
        (open_texts, {"s.csv": 'text,label\n"a"b,0\n'}, "line 2: ',' expected after '\"'"),
        (open_texts, {"s.csv": 'text,label\n"a,0\n'}, "s.csv, line 2: unexpected end of data"),
        (open_texts, {"s.csv": "text\nnaïve\n".encode("latin-1")}, "s.csv is not UTF-8 text"),
    ],
)  # fmt: skip
def test_what_is_broken_is_named(
    tmp_path: Path, opener: Opener, files: Files, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        opener(write(tmp_path / "set", files), label_names=LABELS)


@pytest.mark.parametrize(
    ("opener", "files", "message"),
    [
        (open_images, {"test/cat/1.png": b"text"}, "^test/cat/1.png: not an image"),
        (open_images, {"s.parquet": {"image": [b"text"]}}, "^s/000000: not an image"),
        (open_images, {"set.zip": zipped({"1.png": b"text"})}, "^1.png: not an image"),
        (open_texts, {"test/cat/a.txt": " \n"}, "^test/cat/a.txt holds no text"),
        (open_texts, {"test/cat/a.txt": b"na\xefve"}, "^test/cat/a.txt is not readable UTF-8 text"),
    ],
)
def test_a_broken_sample_is_named_when_it_is_read(
    tmp_path: Path, opener: Opener, files: Files, message: str
) -> None:
    samples = opener(write(tmp_path, files), label_names=LABELS)
    with pytest.raises(DataError, match=message):
        samples.read(0)


def features(names: list[str]) -> dict[str, str]:
    """The metadata of a parquet file that names its classes."""
    return {"huggingface": json.dumps({"info": {"features": {"label": {"names": names}}}})}


@pytest.mark.parametrize(
    ("own_names", "class_map", "expected", "classes"),
    [
        ([*reversed(LABELS)], None, [2, 0], True),
        (["CAT", "big_dog", "T-shirt_top"], None, [0, 2], True),
        (["cat", "x", "T shirt/Top"], None, [0, 2], True),  # no sample is an x
        (["x", "y", "z"], None, "the class 'x' is neither .* data: x, y, z; of the model: Cat", 0),
        (["cat", "cat", "cat"], None, "'cat' is the name of several classes of the data", 0),
        (["0", "1", "2"], None, [0, 2], False),
        (["x", "y", "z"], "index", [0, 2], True),
        (["v", "w", "x", "y"], "index", [0, 2], True),
        (["x", "y", "z"], {"X": "T-shirt/top", "z": "cat"}, [2, 0], True),
        (["x", "y", "cat"], {"x": "big dog"}, [1, 0], True),
        (["x", "y", "z"], {"x": "horse", "z": "cat"}, "the class 'horse' is neither", 0),
    ],
)
def test_parquet_indices_follow_the_class_names_of_the_file(
    tmp_path: Path, own_names: list[str], class_map: Any, expected: Any, classes: bool
) -> None:
    for opener, column in ((open_images, "image"), (open_texts, "text")):
        samples = [png(0)] * 2 if column == "image" else ["a", "b"]
        table = pa.table({column: samples, "label": [0, 2]})
        pq.write_table(table.replace_schema_metadata(features(own_names)), tmp_path / "s.parquet")
        opened = partial(opener, tmp_path / "s.parquet", label_names=LABELS, class_map=class_map)
        if isinstance(expected, str):
            with pytest.raises(ClassMismatch, match=f"^s.parquet: .*{expected}"):
                opened()
            continue
        found: Any = opened()
        assert found.labels.tolist() == expected and found.label_names == LABELS
        assert found.origin.classes == (own_names if classes else None)
        assert opener(tmp_path / "s.parquet").label_names == own_names


@pytest.mark.parametrize(
    ("opener", "files", "class_map", "expected"),
    [
        (open_images, {"cat/1.png": png(1), "T-shirt_top/2.png": png(2)}, None,
         ([2, 0], ["cat", "T-shirt_top"])),
        (open_images, {"set.zip": zipped(DOG)}, None, ([1, 0, 0], ["cat", "big-dog"])),
        (open_images, {"horse/1.png": png(1), "cat/2.png": png(2)}, {"Horse": "BIG_DOG"},
         ([0, 1], ["cat", "horse"])),
        (open_images, {"1/1.png": png(1), "cat/2.png": png(2)}, None, ([1, 0], None)),
        (open_texts, {"set.csv": "text,label\na,T-Shirt Top\nb,x\n"}, {"x": "cat"},
         ([2, 0], ["x", "T-Shirt Top"])),
        (open_texts, {"set.csv": "text,label\na,1\n"}, None, ([1], None)),
        (open_texts, {"s.parquet": {"text": ["a", "b"], "label": ["x", "cat"]}}, {"x": "2"},
         ([2, 0], None)),
        (open_images, {"fox/1.png": png(1), "cat/2.png": png(2)}, {"fox": "elk"},
         "^set: the class folder 'elk' .* of the data: cat, fox; of the model: Cat, Big dog, T-"),
        (open_images, {"fox/1.png": png(1)}, "index", "the class folder 'fox' is neither"),
        (open_texts, {"set.csv": "text,label\na,good\nb,bad\n"}, None,
         "line 2: 'good' .* of the data: good, bad; of the model: Cat"),
    ],
)  # fmt: skip
def test_names_that_data_give_their_classes_are_the_models_or_mapped_or_refused(
    tmp_path: Path, opener: Opener, files: Files, class_map: Any, expected: Any
) -> None:
    source = write(tmp_path / "set", files)
    if isinstance(expected, str):
        with pytest.raises(ClassMismatch, match=expected):
            opener(source, label_names=LABELS, class_map=class_map)
        return
    found = opener(source, label_names=LABELS, class_map=class_map)
    assert (found.labels.tolist(), found.origin.classes) == expected


def test_hub_source_reads_the_cached_split(snapshot: Snapshot) -> None:
    folder = snapshot("datasets--team--set") / "data"
    folder.mkdir()
    write(folder, {"test-00000.parquet": {"image": [png(1)], "text": ["x"]}})
    write(folder, {"train-00000.parquet": {"image": [png(1)] * 2, "text": ["a", "b"]}})
    assert len(open_images("hf:team/set")) == 1 and len(open_images("hf:team/set:train")) == 2
    assert list(open_texts("hf:team/set:train")) == ["a", "b"]
    with pytest.raises(DataError, match="no parquet file of the split 'valid'"):
        open_images("hf:team/set:valid")
    with pytest.raises(DataError, match="hf:team/other cannot be had"):
        open_images("hf:team/other")


def test_part_of_a_known_set_says_so_and_gives_way_to_the_whole(data_folder: Path) -> None:
    write(data_folder, {"ag_news-train-subset2.parquet": {"text": ["a", "b"], "label": [3, 0]}})
    part = open_texts("ag-news", split="train")
    assert part.description.endswith("train, 2 of 120000: a part, not the whole split")
    assert part.label_names == ["World", "Sports", "Business", "Sci/Tech"]
    write(data_folder, {"ag_news-train.parquet": {"text": ["c"], "label": [0]}})
    assert list(open_texts("ag-news", split="train")) == ["c"]


def test_sst2_is_read_as_it_is_published(data_folder: Path) -> None:
    rows = {"idx": [0, 1], "sentence": ["a dull film ", "lovely"], "label": [0, 1]}
    write(data_folder, {"sst2-validation-00000-of-00001.parquet": rows})
    write(data_folder, {"sst2-test-00000-of-00001.parquet": rows | {"label": [-1, -1]}})
    texts = open_texts("sst2", split="test")
    assert list(texts) == ["a dull film ", "lovely"] and texts.labels is not None
    assert texts.labels.tolist() == [0, 1] and texts.label_names == ["negative", "positive"]
    assert texts.description.startswith("SST-2 (Socher et al. 2013), test, 2 of 872: a part")
    with pytest.raises(DataError, match=r"sst2 needs sst2-train\*.parquet in the folder ASSAY_D"):
        open_texts("sst2", split="train")


@pytest.mark.parametrize(
    ("opener", "source", "split", "message"),
    [
        (open_texts, "imdb", "valid", "imdb has the splits train, test, got 'valid'"),
        (open_texts, "imdb", "test", r"imdb needs imdb-test\*.parquet in the folder ASSAY_DATA"),
        (
            open_texts,
            "no",
            "test",
            "no is no file or folder; known names: imdb, ag-news, sst2, hf:NAME",
        ),
        (open_images, "no", "test", "no is no file or folder; known names: fashion-mnist"),
        (open_images, "imdb", "test", "imdb is a set of texts, and images are needed"),
        (open_texts, "CIFAR10", "test", "CIFAR10 is a set of images, and texts are needed"),
    ],
)
@pytest.mark.usefixtures("data_folder")
def test_missing_source_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, source: str, split: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        opener(source, split=split)
    monkeypatch.delenv("ASSAY_DATA")
    with pytest.raises(DataError, match="set ASSAY_DATA"):
        open_images("fashion-mnist")


def test_imagenet_is_read_by_its_identifiers_in_the_usual_order(data_folder: Path) -> None:
    names, labels = WNIDS, IMAGENET_LABELS
    assert len(set(names)) == len(set(labels)) == 1000 and names == sorted(names)
    assert (names[207], labels[207]) == ("n02099601", "golden retriever")
    folder = data_folder / "imagenet"
    write(folder, {"train/n01440764/a.JPEG": png(0), "val/n15075141/b.JPEG": png(0)})
    for split, index in (("train", 0), ("test", 999), ("valid", 999)):
        images = open_images("imagenet", split=split)
        assert images.labels is not None and images.labels.tolist() == [index]
        assert images.label_names == labels


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"train/n01440764/a.JPEG": png(0)}, "imagenet needs the folder imagenet/val"),
        ({"val/n01440764/a.JPEG": png(0), "val/n01443537/": b""},
         "^val: the class folder n01443537 holds no image"),
        ({"val/n00000000/a.JPEG": png(0)}, f"class folder 'n00000000' {NEITHER}"),
        ({"val/a.JPEG": png(0)}, "imagenet/val holds images outside class folders"),
    ],
)  # fmt: skip
def test_broken_layout_of_imagenet_is_named(data_folder: Path, files: Files, message: str) -> None:
    write(data_folder / "imagenet", files)
    with pytest.raises(DataError, match=message):
        open_images("imagenet")


def test_folder_of_a_split_is_told_from_a_class_of_that_name(tmp_path: Path) -> None:
    root = write(tmp_path / "set", {"train/cat/a.png": png(0), "test/big-dog/b.png": png(0)})
    assert open_images(root, split="test", label_names=LABELS).names == ["big-dog/b.png"]
    root = write(tmp_path / "toys", {"train/a.png": png(0), "car/b.png": png(0)})
    assert len(open_images(root, split="train", label_names=["train", "car"])) == 2


@pytest.mark.data
@pytest.mark.parametrize(
    ("opener", "name", "split", "sizes"),
    [
        (open_images, "fashion-mnist", "test", [1000] * 10),
        (open_images, "cifar10", "test", [1000] * 10),
        (open_texts, "imdb", "train", [12_500, 12_500]),
        (open_texts, "ag-news", "test", [1900] * 4),
        (open_texts, "ag-news", "train", [3163, 1257, 1280, 3114]),
    ],
)
def test_known_sets_open_from_the_data_folder(
    opener: Opener, name: str, split: str, sizes: list[int]
) -> None:
    assert np.bincount(opener(name, split=split).labels).tolist() == sizes


def test_a_known_set_keeps_its_own_classes(data_folder: Path) -> None:
    names = KNOWN["fashion-mnist"]
    images, labels = idx(np.zeros((3, 4, 4))), idx(np.array([0, 9, 9]))
    write(data_folder, {"t10k-images-idx3-ubyte": images, "t10k-labels-idx1-ubyte": labels})
    write(data_folder, {"ag_news-test.parquet": {"text": ["a", "b"], "label": [3, 0]}})
    reordered = [name.upper().replace("/", "_") for name in reversed(names)]
    found = open_images("Fashion_MNIST", label_names=reordered)
    assert found.labels is not None and found.labels.tolist() == [9, 0, 0]
    assert found.origin == Origin(
        name="fashion-mnist", split="test", source="t10k-images-idx3-ubyte", classes=names
    )
    texts = open_texts("ag_news", label_names=["sci-tech", "world"])
    assert texts.labels is not None and texts.labels.tolist() == [0, 1]
    with pytest.raises(ClassMismatch, match=r"T-shirt/top.* of the model: airplane, automobile"):
        open_images("fashion-mnist", label_names=KNOWN["cifar10"])
    taken = open_images("fashion-mnist", label_names=KNOWN["cifar10"], class_map="index")
    assert taken.labels is not None and taken.labels.tolist() == [0, 9, 9]
    with pytest.raises(ClassMismatch, match=r"'Ankle boot' has the index 9 of 3 classes"):
        open_images("fashion-mnist", label_names=LABELS, class_map="index")
    with pytest.raises(ClassMismatch, match="ag_news-test.parquet: the class 'World'"):
        open_texts("ag-news", label_names=["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("files", "source", "expected"),
    [
        (DOG, "set", Origin(name="set", source="set", classes=["cat", "big-dog"])),
        ({f"test/{name}": content for name, content in DOG.items()}, "set",
         Origin(name="set", split="test", source="test", classes=["cat", "big-dog"])),
        ({"set.zip": zipped({"a.png": png(0)})}, "set/set.zip",
         Origin(name="set.zip", source="set.zip")),
        ({"test-0.parquet": {"image": [png(0)]}, "test-1.parquet": {"image": [png(0)]}}, "set",
         Origin(name="set", split="test", source="test-0.parquet and 1 more")),
    ],
)  # fmt: skip
def test_a_set_says_where_it_comes_from(
    tmp_path: Path, files: Files, source: str, expected: Origin
) -> None:
    write(tmp_path / "set", files)
    assert open_images(tmp_path / source, label_names=LABELS).origin == expected


def test_shipped_sample_carries_its_labels() -> None:
    sample = Path("artifacts/samples/fashion-mnist")
    images = open_images(sample, label_names=KNOWN["fashion-mnist"])
    assert images.labels is not None and np.bincount(images.labels).tolist() == [30] * 10
