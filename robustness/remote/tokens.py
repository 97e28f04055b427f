"""Texts as a graph of tokens reads them: ids, which of them are real, and segments."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from robustness.remote.connection import EndpointError

_PADS = ("[PAD]", "<pad>", "<|padding|>", "<|endoftext|>")
_MOST = 64 * 2**20  # bytes of a file


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """A tokenizer of the user's, with the marks such as [CLS] that its file says it adds.

    Attributes:
        tokenizer: the library's.
        pad: the id that fills up rows.
        max_len: tokens of a text, marks included; the rest is cut off.
        digest: sha256 of the file.
    """

    tokenizer: Tokenizer
    pad: int
    max_len: int
    digest: str

    def tensors(
        self, texts: Sequence[str], names: Sequence[str], length: int | None
    ) -> Iterator[np.ndarray]:
        """The inputs (B, N) int64 of a graph, one for each name.

        Args:
            texts: B of them.
            names: of the graph's inputs; see `role`.
            length: N; None for the longest text's.

        Raises:
            EndpointError: the library cannot read a text.
        """
        try:
            rows = [row.ids for row in self.tokenizer.encode_batch(list(texts))]
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of the library is no Exception
            raise EndpointError(f"the tokenizer cannot read a text: {error}") from error
        sizes = np.array([len(row) for row in rows])
        width = max(1, int(sizes.max())) if length is None else length
        mask = np.arange(width) < sizes[:, None]  # (B, N)
        ids = np.full(mask.shape, self.pad, np.int64)
        ids[mask] = np.concatenate([np.array(row, np.int64) for row in rows])
        made = {"ids": ids, "mask": mask.astype(np.int64), "segments": np.zeros_like(ids)}
        yield from (made[role(name)] for name in names)


def role(name: str) -> str:
    """What an input of a graph of tokens is for, by its name: "ids", "mask" or "segments"."""
    word = name.lower()
    if "mask" in word:
        return "mask"
    return "segments" if "type" in word or "segment" in word else "ids"


def read_tokens(path: Path, max_len: int) -> Tokens:
    """A tokenizer from its file `tokenizer.json`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no such file, or has no token for padding.
    """
    if path.stat().st_size > _MOST:
        raise ValueError(f"tokenizer: {path.name} is larger than 64 MiB")
    content = path.read_bytes()
    load: Callable[[str], Any] = Tokenizer.from_str
    try:
        tokenizer = load(content.decode())
    except Exception as error:  # the library raises its errors as bare exceptions
        raise ValueError(f"tokenizer: {path.name} is not a readable tokenizer: {error}") from error
    found = [tokenizer.token_to_id(name) for name in _PADS]
    known = [token for token in found if token is not None]
    if not known:
        raise ValueError(f"tokenizer: {path.name} has none of the tokens {', '.join(_PADS)}")
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_len)
    tokenizer.encode_special_tokens = True  # a text may spell out "[PAD]"; it is text all the same
    digest = hashlib.sha256(content).hexdigest()
    return Tokens(tokenizer=tokenizer, pad=known[0], max_len=max_len, digest=digest)
