from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.datasets import listops
from data.datasets.generated import Stream, open_generated
from data.errors import DataError
from data.token_set import Ragged

FILE = "digits-v1-seed0-8-60.npz"


def draw(number: int) -> tuple[Ragged, np.ndarray]:
    """Ten numbers from 0 to 99 with their last digits; some come again."""
    values = np.random.default_rng(number).integers(0, 100, 10)
    return Ragged.of(values[:, None], np.uint8), values % 10


STREAM = Stream(name="digits", version=1, block=draw, splits={"test": (0, 8), "train": (8, 60)})


def read(
    stream: Stream, cache: Path, split: str = "train", *, size: int | None = None
) -> tuple[list[int], np.ndarray]:
    rows, labels = open_generated(stream, split, cache=cache, size=size, workers=1)
    return rows.values.tolist(), labels


def test_splits_share_no_sample_and_smaller_ones_are_their_beginning(tmp_path: Path) -> None:
    (test, _), (train, labels) = (read(STREAM, tmp_path, s) for s in ("test", "train"))
    assert len(test) == 8 and len(train) == 52 and len({*test, *train}) == 60
    assert labels.tolist() == [value % 10 for value in train] and labels.dtype == np.int64
    assert read(STREAM, tmp_path, size=5)[0] == train[:5]


def test_kept_split_is_not_drawn_again(tmp_path: Path) -> None:
    def refuse(number: int) -> tuple[Ragged, np.ndarray]:
        raise ValueError("drawn again")

    first = read(STREAM, tmp_path)
    assert read(replace(STREAM, block=refuse), tmp_path)[0] == first[0]
    with pytest.raises(ValueError, match="drawn again"):
        read(replace(STREAM, block=refuse, version=2), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_changed_or_broken_file_is_refused(tmp_path: Path) -> None:
    read(STREAM, tmp_path)
    with np.load(tmp_path / FILE) as content:
        arrays = {name: content[name] for name in content.files}
    arrays["labels"] = arrays["labels"][::-1]
    np.savez(tmp_path / FILE, allow_pickle=False, **arrays)
    with pytest.raises(DataError, match=f"{FILE} was changed, delete it"):
        read(STREAM, tmp_path)
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(DataError, match=f"{FILE} is broken, delete it"):
            read(STREAM, tmp_path)


def test_wrong_cache_or_size_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written to the cache: Not a directory"):
        read(STREAM, tmp_path / "file" / "cache")
    for size in (0, 53):
        with pytest.raises(DataError, match=f"size of digits must be from 1 to 52, got {size}"):
            read(STREAM, tmp_path, size=size)


def test_set_is_the_same_from_several_processes(tmp_path: Path) -> None:
    stream = replace(STREAM, block=listops.draw_block, splits={"test": (0, 400)})
    one, other = (
        open_generated(stream, "test", cache=tmp_path / str(n), size=None, workers=n)
        for n in (1, 2)
    )
    assert np.array_equal(one[0].values, other[0].values) and np.array_equal(one[1], other[1])
