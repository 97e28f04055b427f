from pathlib import Path

import numpy as np
import pytest

from data.datasets import listops
from data.datasets.generated import Stream, open_generated
from data.errors import DataError
from data.token_set import Ragged

FILE = "digits-v1-seed0-8-60.npz"


def draw(seed: int, number: int) -> tuple[Ragged, np.ndarray]:
    """Ten numbers from 0 to 99 with their last digits; some come again."""
    values = np.random.default_rng([seed, number]).integers(0, 100, 10)
    return Ragged.of(values[:, None], np.uint8), values % 10


def draw_wrong(seed: int, number: int) -> tuple[Ragged, np.ndarray]:
    rows, labels = draw(seed, number)
    return rows, labels + 1


def check(row: np.ndarray, label: int) -> None:
    if row[0] % 10 != label:
        raise ValueError(f"{row[0]} does not end with {label}")


def make_stream(**changes: object) -> Stream:
    fields: dict[str, object] = {
        "name": "digits",
        "version": 1,
        "block": draw,
        "verify": check,
        "splits": {"test": (0, 8), "train": (8, 60)},
    }
    return Stream(**(fields | changes))  # pyright: ignore[reportArgumentType] -- by name


def read(
    stream: Stream, cache: Path, split: str = "train", *, size: int | None = None, seed: int = 0
) -> tuple[list[int], np.ndarray]:
    rows, labels = open_generated(stream, split, cache=cache, seed=seed, size=size, workers=1)
    return rows.values.tolist(), labels


def test_splits_share_no_sample_and_smaller_ones_are_their_beginning(tmp_path: Path) -> None:
    (test, _), (train, labels) = (read(make_stream(), tmp_path, s) for s in ("test", "train"))
    assert len(test) == 8 and len(train) == 52 and len({*test, *train}) == 60
    assert labels.tolist() == [value % 10 for value in train] and labels.dtype == np.int64
    assert read(make_stream(), tmp_path, size=5)[0] == train[:5]


def test_kept_split_is_not_drawn_again(tmp_path: Path) -> None:
    def refuse(seed: int, number: int) -> tuple[Ragged, np.ndarray]:
        raise ValueError("drawn again")

    first = read(make_stream(), tmp_path)
    assert read(make_stream(block=refuse), tmp_path)[0] == first[0]
    for stream, seed in ((make_stream(block=refuse, version=2), 0), (make_stream(block=refuse), 1)):
        with pytest.raises(ValueError, match="drawn again"):
            read(stream, tmp_path, seed=seed)
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_changed_broken_or_wrong_file_is_refused(tmp_path: Path) -> None:
    read(make_stream(), tmp_path)
    with np.load(tmp_path / FILE) as content:
        arrays = {name: content[name] for name in content.files}
    arrays["labels"] = arrays["labels"][::-1]
    np.savez(tmp_path / FILE, allow_pickle=False, **arrays)
    with pytest.raises(DataError, match=f"{FILE} was changed, delete it"):
        read(make_stream(), tmp_path)
    for content in (b"", b"PK\x03\x04", b"\x93NUMPY"):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(DataError, match=f"{FILE} is broken, delete it"):
            read(make_stream(), tmp_path)
    (tmp_path / FILE).unlink()
    with pytest.raises(DataError, match=r"is broken, delete it .*: \d+ does not end with \d+"):
        read(make_stream(block=draw_wrong), tmp_path)


def test_wrong_cache_or_size_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot be written to the cache: Not a directory"):
        read(make_stream(), tmp_path / "file" / "cache")
    for size in (0, 53):
        with pytest.raises(DataError, match=f"size of digits must be from 1 to 52, got {size}"):
            read(make_stream(), tmp_path, size=size)


def test_set_is_the_same_from_several_processes(tmp_path: Path) -> None:
    fields = {"block": listops.draw_block, "verify": listops.verify, "splits": {"test": (0, 400)}}
    stream = make_stream(**fields)
    one, other = (
        open_generated(stream, "test", cache=tmp_path / str(n), seed=0, size=None, workers=n)
        for n in (1, 2)
    )
    assert np.array_equal(one[0].values, other[0].values) and np.array_equal(one[1], other[1])
