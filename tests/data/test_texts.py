import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import DataError
from data.sources import TextSet, open_texts
from tests.data.conftest import Snapshot

LABELS = ["neg", "pos", "Sci/Tech"]


def write_parquet(path: Path, texts: list[object], labels: list[object] | None) -> Path:
    columns: dict[str, list[object]] = {"text": texts}
    if labels is not None:
        columns["label"] = labels
    pq.write_table(pa.table(columns), path)
    return path


def write_csv(path: Path, content: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(content.encode(encoding))
    return path


def write_folder(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def labels_of(texts: TextSet) -> list[int]:
    assert texts.labels is not None
    return texts.labels.tolist()


def test_parquet_holds_texts_and_labels(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "set.parquet", ["good", "bad"], [1, 0])
    texts = open_texts(path, label_names=LABELS)
    assert list(texts) == ["good", "bad"] and labels_of(texts) == [1, 0]
    assert texts.names == ["set/000000", "set/000001"]
    assert texts.description == "set, 2 rows"
    taken = texts.take([1])
    assert list(taken) == ["bad"] and labels_of(taken) == [0] and taken.names == ["set/000001"]


def test_parquet_class_names_translate_its_indices(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "set.parquet", ["a", "b"], [0, 2])
    features = {"info": {"features": {"label": {"names": [*reversed(LABELS)]}}}}
    table = pq.read_table(path).replace_schema_metadata({"huggingface": json.dumps(features)})
    pq.write_table(table, path)
    assert labels_of(open_texts(path, label_names=LABELS)) == [2, 0]
    assert open_texts(path).label_names == [*reversed(LABELS)]


@pytest.mark.parametrize(
    ("texts", "labels", "message"),
    [
        (["a", " \n"], [0, 1], "set.parquet: row 1 holds no text"),
        ([None, "a"], [0, 1], "set.parquet: row 0 holds no text"),
        (["a"], ["maybe"], "^set.parquet, row 0: 'maybe' is neither a label name nor an index"),
        ([1], [0], "^set.parquet: the column 'text' must hold strings, got int64"),
    ],
)
def test_broken_parquet_row_is_named(
    tmp_path: Path, texts: list[object], labels: list[object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_texts(write_parquet(tmp_path / "set.parquet", texts, labels), label_names=LABELS)


def test_parquet_files_are_read_as_one_and_a_broken_row_is_named_there(tmp_path: Path) -> None:
    write_parquet(tmp_path / "test-0.parquet", ["a", "b"], [0, 1])
    write_parquet(tmp_path / "test-1.parquet", ["c"], [2])
    opened = open_texts(tmp_path, label_names=LABELS)
    assert list(opened) == ["a", "b", "c"] and labels_of(opened) == [0, 1, 2]
    assert opened.names == ["test-0/000000", "test-0/000001", "test-1/000000"]
    write_parquet(tmp_path / "test-1.parquet", ["c", " "], [0, 0])
    with pytest.raises(DataError, match="^test-1.parquet: row 1 holds no text"):
        open_texts(tmp_path, label_names=LABELS)


def test_parquet_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "test-0.parquet", ["a"], [0])
    write_parquet(tmp_path / "test-1.parquet", ["b"], None)
    with pytest.raises(DataError, match="test-1.parquet has other columns than test-0.parquet"):
        open_texts(tmp_path)
    pq.write_table(pa.table({"review": ["a"]}), tmp_path / "set.parquet")
    with pytest.raises(DataError, match=r"set.parquet has no column 'text', only \['review'\]"):
        open_texts(tmp_path / "set.parquet")
    (tmp_path / "set.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="^set.parquet is not a readable parquet file"):
        open_texts(tmp_path / "set.parquet")


@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_csv_is_read_as_the_standard_says(tmp_path: Path, start: str) -> None:
    content = start + 'text,label\r\n"one, ""two""\r\nthree",pos\r\nnaïve,2\r\n\r\n'
    texts = open_texts(write_csv(tmp_path / "set.csv", content), label_names=LABELS)
    assert list(texts) == ['one, "two"\r\nthree', "naïve"] and labels_of(texts) == [1, 2]


def test_csv_columns_come_in_any_order_and_labels_may_be_missing(tmp_path: Path) -> None:
    swapped = write_csv(tmp_path / "a.csv", "id,label,text\n7,sci-tech,x\n")
    assert labels_of(open_texts(swapped, label_names=LABELS)) == [2]
    assert open_texts(write_csv(tmp_path / "b.csv", "text\nx\n")).labels is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"set.csv has no column 'text', only \[\]"),
        ("text,label\n", "set.csv holds no row"),
        ("text,label\na,0\nb\n", "set.csv, line 3: 2 cells are needed, got 1"),
        ("text,label\na,0\nb,c,0\n", "set.csv, line 3: 2 cells are needed, got 3"),
        ('text,label\n"a\nb",0\n" ",1\n', "set.csv, line 4: the row holds no text"),
        ("text,label\na,9\n", "set.csv, line 2: label 9 is out of range: there are 3 classes"),
        ("text,label\na,\n", "set.csv, line 2: '' is neither a label name nor an index"),
        ('text,label\n"a"b,0\n', "set.csv, line 2: ',' expected after '\"'"),
        ('text,label\n"a,0\n', "set.csv, line 2: unexpected end of data"),
    ],
)
def test_broken_csv_row_is_named_by_its_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_texts(write_csv(tmp_path / "set.csv", content), label_names=LABELS)
    latin = write_csv(tmp_path / "set.csv", "text,label\nnaïve,0\n", "latin-1")
    with pytest.raises(DataError, match="set.csv is not UTF-8 text"):
        open_texts(latin)


def test_folder_of_reviews_is_read_as_it_is_unpacked(tmp_path: Path) -> None:
    files = {
        "test/neg/0_2.txt": "bad",
        "test/pos/0_9.txt": "good",
        "test/urls_neg.txt": "http",
        "train/pos/1_9.txt": "fine",
        "train/unsup/0_0.txt": "unlabeled",
    }
    folder = write_folder(tmp_path / "aclImdb", files)
    texts = open_texts(folder, label_names=LABELS)
    assert texts.names == ["neg/0_2.txt", "pos/0_9.txt"] and labels_of(texts) == [0, 1]
    assert list(open_texts(folder, split="train", label_names=LABELS)) == ["fine"]
    flat = open_texts(write_folder(tmp_path / "flat", {"a.txt": "\ufeffone"}))
    assert flat.labels is None and list(flat) == ["one"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"fun/a.txt": "x"}, "^set: the class folder 'fun' is neither a label name nor an index"),
        ({"pos/a.txt": "x", "neg/a.md": "x"}, "^the folder set/neg holds no text file"),
        ({"a.md": "x"}, "^the folder set holds no text file"),
    ],
)
def test_unknown_or_empty_text_folder_is_named(
    tmp_path: Path, files: dict[str, str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_texts(write_folder(tmp_path / "set", files), label_names=LABELS)


def test_broken_text_file_is_named_when_read(tmp_path: Path) -> None:
    write_folder(tmp_path, {"test/pos/blank.txt": " \n"})
    (tmp_path / "test" / "pos" / "latin.txt").write_bytes(b"na\xefve")
    texts = open_texts(tmp_path, label_names=LABELS)
    with pytest.raises(DataError, match="^test/pos/blank.txt holds no text"):
        texts.read(0)
    with pytest.raises(DataError, match="^test/pos/latin.txt is not readable UTF-8 text"):
        texts.read(1)


def test_hub_texts_are_read_from_the_cache(snapshot: Snapshot) -> None:
    path = snapshot("datasets--team--set") / "train-00000.parquet"
    write_parquet(path, ["a", "b"], [0, 1])
    assert list(open_texts("hf:team/set:train", label_names=LABELS)) == ["a", "b"]


def test_part_of_a_known_set_says_so_and_gives_way_to_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    write_parquet(tmp_path / "ag_news-train-subset2.parquet", ["a", "b"], [3, 0])
    part = open_texts("ag-news", split="train")
    assert part.description.endswith("train, 2 of 120000: a part, not the whole split")
    assert part.label_names == ["World", "Sports", "Business", "Sci/Tech"]
    write_parquet(tmp_path / "ag_news-train.parquet", ["c"], [0])
    assert list(open_texts("ag-news", split="train")) == ["c"]


@pytest.mark.parametrize(
    ("source", "split", "message"),
    [
        ("imdb", "valid", "imdb has the splits train, test, got 'valid'"),
        ("imdb", "test", r"imdb needs imdb-test\*.parquet in the folder ASSAY_DATA"),
        ("nothing", "test", "nothing is no file or folder; known names: imdb, ag-news, hf:NAME"),
    ],
)
def test_missing_known_set_says_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, split: str, message: str
) -> None:
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(DataError, match=message):
        open_texts(source, split=split)
    (tmp_path / "set.json").write_text("[]")
    with pytest.raises(DataError, match="set.json must be a folder, a .csv or a .parquet file"):
        open_texts(tmp_path / "set.json")


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "split", "sizes"),
    [
        ("imdb", "train", [12_500, 12_500]),
        ("ag-news", "test", [1900] * 4),
        ("ag-news", "train", [3163, 1257, 1280, 3114]),
    ],
)
def test_known_texts_open_from_the_data_folder(name: str, split: str, sizes: list[int]) -> None:
    labels = labels_of(open_texts(name, split=split))
    assert [labels.count(label) for label in range(len(sizes))] == sizes
