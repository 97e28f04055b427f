import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.errors import DataError
from data.formats import documents as module
from data.formats import hub
from data.formats.documents import Documents, open_documents
from data.words import byte_stream, lines_of, train_words, word_stream

WIKI = {"train": " \n = A = \n a b <unk> a \n", "valid": " a c \n", "test": " b @-@ b \n"}


def wikitext(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for split, text in WIKI.items():
        (folder / f"wiki.{split}.tokens").write_text(text)
    return folder


def of(*texts: str) -> Documents:
    return Documents(texts=[text.encode() for text in texts], name="made", split=None)


def test_published_files_are_read_as_folder_zip_and_parquet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = wikitext(tmp_path / "wikitext-103")
    (folder / "README.txt").write_text("what this is")
    packed = tmp_path / "wikitext-103-v1.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for split, text in WIKI.items():
            archive.writestr(f"wikitext-103/wiki.{split}.tokens", text)
        archive.writestr("__MACOSX/wikitext-103/wiki.train.tokens", "rubbish")
    on_hub = tmp_path / "hub" / "wikitext-103-v1"
    on_hub.mkdir(parents=True)
    for split, text in WIKI.items():
        rows = pa.table({"text": [f"{line}\n" for line in text.split("\n")[:-1]]})
        name = {"valid": "validation"}.get(split, split)
        pq.write_table(rows, on_hub / f"{name}-00000-of-00001.parquet")
    asked = []

    class Hub:
        @staticmethod
        def snapshot_download(name: str, **given: object) -> str:
            asked.append((name, given["allow_patterns"]))
            return str(tmp_path / "hub")

    monkeypatch.setattr(hub, "_hub", lambda: Hub)
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    sources = (str(folder), str(packed), "hf:Salesforce/wikitext/wikitext-103-v1", "wikitext-103")
    for source in sources:
        for split, text in WIKI.items():
            found = open_documents(source, split)
            assert found.joined() == text.encode().removesuffix(b"\n"), source
    assert asked[0][0] == "Salesforce/wikitext" and "wikitext-103-v1/*.parquet" in asked[0][1]
    folder.rename(tmp_path / "elsewhere")
    assert open_documents("wikitext-103", "test").joined() == b" b @-@ b "  # the zip


def test_enwik8_is_split_by_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = {"train": (0, 90), "valid": (90, 95), "test": (95, 100)}
    monkeypatch.setattr(module, "ENWIK8", bounds)
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    content = bytes(range(100))
    with zipfile.ZipFile(tmp_path / "enwik8.zip", "w") as archive:
        archive.writestr("enwik8", content)
    stream = byte_stream(open_documents("enwik8", "test"))
    assert stream.tolist() == list(range(95, 100))
    (tmp_path / "enwik8").write_bytes(content)
    assert byte_stream(open_documents("enwik8", "train")).tolist() == list(range(90))
    (tmp_path / "enwik8").write_bytes(content[:-1])
    with pytest.raises(DataError, match="enwik8 must hold 100 bytes, got 99"):
        open_documents("enwik8", "train")


def test_any_folder_of_texts_has_the_splits_that_its_names_tell(tmp_path: Path) -> None:
    for name in ("train/2.txt", "train/1.txt", "test/constraints.txt", "notes.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert open_documents(str(tmp_path), "train").texts == [b"train/1.txt", b"train/2.txt"]
    assert open_documents(str(tmp_path), "test").texts == [b"test/constraints.txt"]
    assert len(open_documents(str(tmp_path))) == 3
    with pytest.raises(DataError, match="has no valid split, only test, train"):
        open_documents(str(tmp_path), "valid")
    with pytest.raises(DataError, match="train is the same for every split: give files with"):
        open_documents(str(tmp_path / "train"), "train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty", None, r"empty holds no text file \(.txt, .tokens, .raw or enwik8\)"),
        ("text.md", b"a", "text.md must be a folder, a .zip or end in .txt, .tokens, .raw"),
        ("text.zip", b"a", "text.zip is not a readable zip"),
        ("text.parquet", b"a", "text.parquet is not a readable parquet file"),
        ("nowhere", b"", "nowhere is no file or folder; known names: wikitext-103, enwik8, imdb"),
    ],
)
def test_what_holds_no_texts_is_refused(
    tmp_path: Path, name: str, content: bytes | None, message: str
) -> None:
    path = tmp_path / name
    if content is None:
        path.mkdir()
    elif content:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_documents(str(path) if content != b"" else name)


def test_known_files_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ASSAY_DATA", str(tmp_path))
    with pytest.raises(DataError, match="enwik8 needs enwik8 or enwik8.zip in the folder ASSAY"):
        open_documents("enwik8", "train")
    with pytest.raises(DataError, match=r"imdb needs imdb-\*.parquet in the folder ASSAY_DATA"):
        open_documents("imdb")


def test_words_are_those_of_the_file_the_commonest_first() -> None:
    lines = list(lines_of(of(WIKI["train"], "b a\nc")))
    assert lines == [" \n", " = A = \n", " a b <unk> a \n", "b a\n", "c\n"]
    tokenizer = train_words(lines, vocab_size=None, raw=False)
    expected = ["<unk>", "<eos>", "a", "=", "b", "A", "c"]
    assert [tokenizer.id_of(word) for word in expected] == list(range(7))
    stream = word_stream(of("a\nz <unk> A\n", "c"), tokenizer)
    assert stream.tolist() == [2, 1, 0, 0, 5, 1, 6, 1] and stream.dtype == np.uint16
    few = train_words(lines, vocab_size=4, raw=False)
    assert few.vocab_size == 4 and word_stream(of("a = b"), few).tolist() == [2, 3, 0, 1]
    again = train_words(lines, vocab_size=4, raw=False)
    assert again.to_bytes() == few.to_bytes()


def test_raw_text_is_lowered_and_its_marks_are_words() -> None:
    text = "It's GOOD -- really!<br />It is."
    tokenizer = train_words(lines_of(of(text)), vocab_size=None, raw=True)
    words = tokenizer.vocabulary().texts
    stream = word_stream(of(text), tokenizer)
    expected = ["it's", "good", "-", "-", "really", "!", "it", "is", "."]
    assert [words[index] for index in stream[:-1]] == expected and stream[-1] == 1


def test_texts_without_words_or_in_no_utf_8_are_refused() -> None:
    with pytest.raises(ValueError, match="the vocabulary must hold a word, got none"):
        train_words(lines_of(of(" \n \n")), vocab_size=None, raw=False)
    bad = Documents(texts=[b"a", b"\xff"], name="made", split=None)
    with pytest.raises(DataError, match="made: text 1 is not UTF-8"):
        list(lines_of(bad))


def test_bytes_of_documents_have_a_line_break_between_them() -> None:
    assert bytes(byte_stream(of("one\n", "two", "ü"))) == "one\ntwo\nü".encode()
