import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data.datasets.lra import grey, open_tokens
from data.errors import DataError

_ROW = b"1.0\tA1\tB2\tone text\tthe other\n"


def test_listops_and_pathfinder_are_drawn_and_kept(tmp_path: Path) -> None:
    tokens = open_tokens("lra-listops", split="valid", cache=tmp_path, size=50)
    batch, mask, labels = tokens.batch(range(50))
    assert batch.shape == mask.shape == (50, tokens.lengths.max()) and len(labels) == 50
    assert (batch[~mask] == tokens.pad).all() and batch.max() < tokens.vocab_size == 16
    assert tokens.seq_len == 2000 and tokens.label_names == list("0123456789")
    assert len(list(tmp_path.iterdir())) == 1
    tokens = open_tokens("lra-pathfinder", cache=tmp_path, size=400)
    batch, mask, labels = tokens.batch(range(400))
    assert batch.shape == (400, 1024) and mask.all() and batch.max() < tokens.vocab_size
    assert tokens.label_names == ["apart", "joined"] and abs(labels.mean() - 0.5) < 0.08


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "lra-music"}, "name must be one of lra-listops, .* got 'lra-music'"),
        ({"name": "lra-text", "split": "valid"}, "lra-text has the splits train, test, got"),
        ({"name": "lra-listops", "split": "dev"}, "has the splits train, valid, test, got 'dev'"),
        ({"name": "lra-pathfinder"}, "lra-pathfinder is drawn here: cache must name a folder"),
        ({"name": "lra-image", "size": 3}, "lra-image is not drawn here, it has no size"),
    ],
)
def test_wrong_argument_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_tokens(**arguments)  # pyright: ignore[reportArgumentType] -- wrong on purpose


@pytest.mark.parametrize("folder", ["", "lra-retrieval"])
def test_retrieval_reads_pairs_of_bytes(data_folder: Path, folder: str) -> None:
    long = b'0.0\tA1\tB2\tna\xc3\xafve "quote"\t' + b"x" * 5000 + b"\r\n"
    (data_folder / folder).mkdir(exist_ok=True)
    (data_folder / folder / "new_aan_pairs.eval.tsv").write_bytes(_ROW + long)
    tokens = open_tokens("lra-retrieval", split="valid")
    assert tokens.towers == 2 and tokens.labels.tolist() == [1, 0]
    one, other = tokens.sequences
    assert bytes(one[1].astype(np.uint8)) == 'naïve "quote"'.encode()
    assert one[0].tolist() == list(b"one text") and other.lengths.tolist() == [9, 4000]
    batch, mask, _ = tokens.batch([0])
    assert batch.shape == (1, 2, 9) and mask.sum(2).tolist() == [[8, 9]]
    assert (batch[~mask] == 256).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "needs new_aan_pairs.test.tsv, from the folder tsv_data"),
        (b"", "new_aan_pairs.test.tsv holds no pair"),
        (_ROW + b"1.0\tA\tB\tone\n", "line 2: label, .* needed, 4 found"),
        (_ROW + b"2.0\tA\tB\tone\ttwo\n", "line 2: label must be 0.0 or 1.0"),
        (_ROW + b"0.0\tA\tB\t\ttwo\n", "line 2: a text is empty"),
    ],
)
def test_broken_pair_is_named_by_its_line(
    data_folder: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (data_folder / "new_aan_pairs.test.tsv").write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_tokens("lra-retrieval")


def test_text_and_image_are_made_of_known_sets(data_folder: Path) -> None:
    table = pa.table({"text": ["naïve", "x" * 5000], "label": [1, 0]})
    pq.write_table(table, data_folder / "imdb-test.parquet")
    tokens = open_tokens("lra-text")
    assert tokens.lengths.tolist() == [6, 4000] and tokens.labels.tolist() == [1, 0]
    assert bytes(tokens.sequences[0][0].astype(np.uint8)) == "naïve".encode()
    assert (tokens.vocab_size, tokens.pad) == (257, 256)
    pixels = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    table = pa.table({"image": [stream.getvalue()] * 2, "label": [3, 9]})
    pq.write_table(table, data_folder / "cifar10-test.parquet")
    tokens = open_tokens("lra-image")
    rows, mask, labels = tokens.batch([0, 1])
    assert rows.tolist() == [grey(pixels.transpose(2, 0, 1)).ravel().tolist()] * 2
    assert mask.all() and labels.tolist() == [3, 9] and tokens.label_names[3] == "cat"


def test_grey_is_the_weighted_sum_of_the_colors() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (3, 50, 50)).astype(np.uint8)
    red, green, blue = pixels.astype(np.float64)
    exact = (0.2989 * red + 0.587 * green + 0.114 * blue) * (255.5 / 255)
    clear = abs(exact - np.rint(exact)) > 1e-3
    assert np.array_equal(grey(pixels)[clear], np.floor(exact[clear]))
    ends = np.array([0, 255], np.uint8)
    assert grey(np.stack([ends[None]] * 3)).tolist() == [[0, 255]]
