"""Plain texts to learn a language from: files, zips of them, and the texts of labeled sets.

A folder or a zip holds text files (`.txt`, `.tokens`, `.raw`), whose split is a word of their path,
as in `wiki.train.tokens`, `train.txt` or `test/1.txt`; or the file `enwik8`, whose split is by
bytes. Without any such word the files are documents of one set.
"""

import re
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from data.datasets.known import KNOWN_TEXTS, data_folder
from data.errors import DataError
from data.formats.hub import hub_folder
from data.labels import normalize
from data.splits import find_splits, split_indices

SUFFIXES = (".txt", ".tokens", ".raw")
ENWIK8 = {"train": (0, 90_000_000), "valid": (90_000_000, 95_000_000), "test": (95_000_000, 10**8)}
"""The split of the first 10^8 bytes of a Wikipedia (Mahoney 2011) that all papers use."""
WIKITEXT = ("wikitext-103", "wikitext-103-v1.zip", "wikitext-103-raw", "wikitext-103-raw-v1.zip")
"""What WikiText-103 (Merity et al. 2017) is published as, and unpacked to."""
KNOWN_FILES = {"wikitext-103": WIKITEXT, "enwik8": ("enwik8", "enwik8.zip")}
"""Names of text files found in the folder ASSAY_DATA."""
_SPLITS = {name: name for name in ("train", "valid", "test")}
_SPLITS |= {"validation": "valid", "val": "valid"}
_WORD = re.compile(r"[a-z]+")

Read = Callable[[], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """Texts in UTF-8, in order.

    Attributes:
        texts: of any length.
        name: of the data set.
        split: which part; None where the set has no parts, or all of it was asked for.
    """

    texts: list[bytes]
    name: str
    split: str | None

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.texts)

    def take(self, indices: np.ndarray) -> "Documents":
        """The texts at these indices, in this order."""
        texts = [self.texts[int(index)] for index in indices]
        return Documents(texts=texts, name=self.name, split=self.split)

    def joined(self) -> bytes:
        """All texts as one, a line break between two."""
        return b"\n".join(text.removesuffix(b"\n") for text in self.texts)


def open_documents(source: str, split: str | None = None) -> Documents:
    """Read the texts of a source.

    Args:
        source: a folder, a zip, a text file, parquet files with a column `text`, `hf:OWNER/NAME`
            (with `/FOLDER` where parquet files lie in several), or a known name.
        split: `train`, `valid` or `test`; None for the texts of all.

    Raises:
        DataError: the source is missing or broken, holds no text, or lacks the split.
    """
    name, parts = _parts(source)
    if split is None:
        texts = [text for reads in parts.values() for read in reads for text in read()]
        return Documents(texts=texts, name=name, split=None)
    if split not in parts:
        if list(parts) == [""]:
            raise DataError(
                f"{name} is the same for every split: give files with train, valid and test in "
                "their names, or data.valid and data.test to hold documents out"
            )
        raise DataError(f"{name} has no {split} split, only {', '.join(parts)}")
    texts = [text for read in parts[split] for text in read()]
    return Documents(texts=texts, name=name, split=split)


def split_documents(
    source: str, valid: int | None, test: int | None, seed: int
) -> dict[str, Documents]:
    """The texts of the splits `train`, `valid` and `test`: the source's own, or held out.

    Args:
        source: see `open_documents`.
        valid: documents held out of the others for validation; None where the source has a split.
        test: documents held out of all for the test; None where the source has a split.
        seed: of the draws.

    Raises:
        DataError: see `open_documents`; or there are too few documents.
    """
    if test is None:
        train, tests = (open_documents(source, split) for split in ("train", "test"))
    else:
        train, tests = _held_out(open_documents(source), test, seed, "test")
    if valid is None:
        return {"train": train, "valid": open_documents(source, "valid"), "test": tests}
    train, valids = _held_out(train, valid, seed, "valid")
    return {"train": train, "valid": valids, "test": tests}


def _held_out(
    documents: Documents, count: int, seed: int, name: str
) -> tuple[Documents, Documents]:
    try:
        rest, held_out = split_indices(len(documents), count, seed)
    except ValueError:
        raise DataError(
            f"data.{name} must be from 1 to {len(documents) - 1} for {documents.name}, which holds "
            f"{len(documents)} documents, got {count}"
        ) from None
    return documents.take(rest), documents.take(held_out)


Parts = dict[str, list[Callable[[], list[bytes]]]]
"""By split, what reads the texts of each file; the split is empty where there are none."""


def _parts(source: str) -> tuple[str, Parts]:
    path = Path(source)
    name = path.name
    if source.startswith("hf:"):
        name, path = source, hub_folder(source.removeprefix("hf:"))
    elif not path.exists():
        return _known(source)
    if path.suffix == ".parquet":
        return name, {"": _parquet([path])}
    if parquet := sorted(path.glob("*.parquet")):
        splits = find_splits(path)
        return name, {_SPLITS[s]: _parquet(files) for s, files in splits.items()} or {
            "": _parquet(parquet)
        }
    return name, _by_split(name, _files(path))


def _known(source: str) -> tuple[str, Parts]:
    for name, files in KNOWN_FILES.items():
        if normalize(name) == normalize(source):
            found = [path for file in files if (path := data_folder(name) / file).exists()]
            if not found:
                raise DataError(f"{name} needs {' or '.join(files)} in the folder ASSAY_DATA")
            return name, _by_split(name, _files(found[0]))
    for name, known in KNOWN_TEXTS.items():
        if normalize(name) == normalize(source):
            folder = data_folder(name)
            splits = {s: sorted(folder.glob(known.pattern(s))) for s in known.sizes}
            parts = {split: _parquet(files) for split, files in splits.items() if files}
            if not parts:
                raise DataError(f"{name} needs {known.prefix}-*.parquet in the folder ASSAY_DATA")
            return name, parts
    known_names = ", ".join([*KNOWN_FILES, *KNOWN_TEXTS])
    raise DataError(f"{source} is no file or folder; known names: {known_names}, hf:OWNER/NAME")


def _files(path: Path) -> dict[str, Read]:
    """What reads each text file of a folder or zip, or the file itself, by its path within."""
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if file.is_file() and _is_text(file.name))
        return {file.relative_to(path).as_posix(): file.read_bytes for file in found}
    if path.suffix != ".zip":
        if not _is_text(path.name):
            raise DataError(f"{path.name} must be a folder, a .zip or end in {', '.join(SUFFIXES)}")
        return {path.name: path.read_bytes}
    try:
        with zipfile.ZipFile(path) as archive:
            names = sorted(one.filename for one in archive.infolist() if _is_text(one.filename))
    except (OSError, zipfile.BadZipFile) as error:
        raise DataError(f"{path.name} is not a readable zip: {error}") from error
    return {name: _unzip(path, name) for name in names}


def _unzip(path: Path, name: str) -> Read:
    def read() -> bytes:
        with zipfile.ZipFile(path) as archive, archive.open(name) as file:
            return file.read(archive.getinfo(name).file_size)

    return read


def _is_text(name: str) -> bool:
    path = PurePosixPath(name)
    known = path.suffix in SUFFIXES or path.name == "enwik8"
    return known and not any(part.startswith((".", "__")) for part in path.parts)


def _by_split(name: str, files: dict[str, Read]) -> Parts:
    if not files:
        raise DataError(f"{name} holds no text file ({', '.join(SUFFIXES)} or enwik8)")
    for file, read in files.items():
        if PurePosixPath(file).name == "enwik8":
            return {split: [_slice(read, *bounds)] for split, bounds in ENWIK8.items()}
    found: Parts = {}
    for file, read in files.items():
        words = _WORD.findall(file.removesuffix(PurePosixPath(file).suffix).lower())
        splits = [_SPLITS[word] for word in words if word in _SPLITS]
        found.setdefault(splits[0] if splits else "", []).append(_whole(read))
    if len(found) > 1:
        found.pop("", None)  # such as a README beside the splits
    return found


def _whole(read: Read) -> Callable[[], list[bytes]]:
    return lambda: [read()]


def _slice(read: Read, first: int, end: int) -> Callable[[], list[bytes]]:
    def texts() -> list[bytes]:
        content = read()
        most = max(end for _, end in ENWIK8.values())
        if len(content) != most:
            raise DataError(f"enwik8 must hold {most:,} bytes, got {len(content):,}")
        return [content[first:end]]

    return texts


def _parquet(files: Iterable[Path]) -> list[Callable[[], list[bytes]]]:
    # Next to a whole split, a part of it would only repeat its rows.
    files = list(files)
    whole = [path for path in files if "subset" not in path.name]
    return [_rows(path) for path in whole or files]


def _rows(path: Path) -> Callable[[], list[bytes]]:
    def texts() -> list[bytes]:
        from data.formats.parquet import read_texts  # pyarrow takes 35 MB of every server

        return [text.encode() for text in read_texts(path)]

    return texts
