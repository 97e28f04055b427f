from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import DataError
from data.sources import open_images, open_texts
from data.splits import find_splits, split_indices

LABELS = ["neg", "pos"]


def write(root: Path, *names: str) -> Path:
    """Files that hold their own names as one text; the rows of a table have the label 0."""
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".parquet":
            pq.write_table(pa.table({"text": [name], "label": [0]}), path)
        else:
            path.write_text(f"text,label\n{name},0\n" if path.suffix == ".csv" else name)
    return root


FOLDERS = ["train/neg/a.txt", "train/pos/a.txt", "test/neg/a.txt", "test/pos/a.txt"]


@pytest.mark.parametrize(
    ("files", "train", "test"),
    [
        (FOLDERS, FOLDERS[:2], FOLDERS[2:]),
        ([*FOLDERS, "train.csv"], FOLDERS[:2], FOLDERS[2:]),
        (["train.csv", "test.csv", "more.csv"], ["train.csv"], ["test.csv"]),
        (["Train-1.parquet", "train-0.parquet", "test.parquet", "extra.parquet"],
         ["Train-1.parquet", "train-0.parquet"], ["test.parquet"]),
        (["latest_train.parquet", "latest_testset.parquet", "latest_val.parquet"],
         ["latest_train.parquet"], ["latest_testset.parquet"]),
    ],
)  # fmt: skip
def test_each_split_has_samples_of_its_own(
    tmp_path: Path, files: list[str], train: list[str], test: list[str]
) -> None:
    folder = write(tmp_path / "set", *files)
    for split, expected in (("train", train), ("test", test)):
        assert list(open_texts(folder, split=split, own_split=True, label_names=LABELS)) == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["train/neg/a.txt", "val/neg/a.txt"], "set has no test split, only train, val"),
        (["train/neg/a.txt", "test/a.txt"], "set has no test split, only train"),
        (["train.csv", "valid.csv"], "set has no test split, only train, valid"),
        (["train-0.parquet", "latest.parquet"], "set has no test split, only train"),
        (["validation-0.parquet"], "set has no test split, only validation"),
    ],
)
def test_no_split_stands_in_for_another(tmp_path: Path, files: list[str], message: str) -> None:
    folder = write(tmp_path / "set", *files)
    with pytest.raises(DataError, match=message):
        open_texts(folder, label_names=LABELS)
    if "csv" not in files[0]:
        with pytest.raises(DataError, match=message):
            open_images(folder, label_names=LABELS)


@pytest.mark.parametrize(
    ("files", "source"),
    [
        (["neg/a.txt", "pos/a.txt"], "set"),
        (["neg/a.txt", "pos/a.txt", "test.csv"], "set"),
        (["latest.parquet", "more.parquet"], "set"),
        (["train.parquet"], "set/train.parquet"),
        (["train.csv"], "set/train.csv"),
    ],
)
def test_source_without_splits_is_read_whole_or_refused(
    tmp_path: Path, files: list[str], source: str
) -> None:
    write(tmp_path / "set", *files)
    path = tmp_path / source
    texts = [file for file in files if not (path.is_dir() and file.endswith(".csv"))]
    for split in ("train", "test"):
        assert list(open_texts(path, split=split, label_names=LABELS)) == texts
        with pytest.raises(DataError, match=f"{source} is the same for every split.*train.csv and"):
            open_texts(path, split=split, own_split=True, label_names=LABELS)
        with pytest.raises(DataError, match=r"give a folder with train/ and test/, or parquet"):
            open_images(path, split=split, own_split=True, label_names=LABELS)


def test_files_of_one_split_are_no_others(tmp_path: Path) -> None:
    for opened in (open_images, open_texts):
        with pytest.raises(DataError, match="^hf:team/set:train is the same for every split"):
            opened("hf:team/set:train", own_split=True)
    files = {split: [tmp_path / f"{split}.csv"] for split in ("train", "test")}
    write(tmp_path, "train.csv", "test.csv")
    assert find_splits(tmp_path) == {} and find_splits(tmp_path, csv=True) == files


def test_split_is_a_partition_and_repeats() -> None:
    train, valid = split_indices(100, 10, seed=3)
    assert sorted([*train, *valid]) == list(range(100)) and len(valid) == 10
    assert split_indices(100, 10, seed=3)[1].tolist() == valid.tolist()
    assert split_indices(100, 10, seed=4)[1].tolist() != valid.tolist()
    for valid in (0, 100):
        with pytest.raises(ValueError, match=f"valid must be from 1 to 99, got {valid}"):
            split_indices(100, valid, seed=0)
