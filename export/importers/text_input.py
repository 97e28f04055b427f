"""How texts become what an imported graph reads: its tokenizer, marks, lengths and inputs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from onnx import TensorProto
from pydantic import Field

from core.json import read_json
from data.errors import DataError
from data.sources import open_texts
from data.token_set import Ragged
from data.tokenizer import TextTokenizer, load_tokenizer
from export import parity
from export.importers.input_file import InputKeys, Length
from export.samples import Feed, Samples, spread
from runtimes.manifest import RANDOM_TOKENS, TOKENIZER, TokensSpec
from runtimes.probe import PROBE_SAMPLES
from runtimes.tasks import TEXTS

INTEGERS = {TensorProto.INT32, TensorProto.INT64}
_MASKS = INTEGERS | {TensorProto.BOOL, TensorProto.FLOAT, TensorProto.FLOAT16}
_CALLED = {"mask": ("mask",), "types": ("type", "segment")}
_LONGEST = 16384
Marks = Annotated[list[str], Field(max_length=16)]


class TextInputFile(InputKeys):
    """What a text becomes before the graph reads it.

    Attributes:
        tokenizer: a file `tokenizer.json`, or `bytes`; None takes the file beside the graph.
        max_len: tokens that the graph reads at most, marks included; None takes what its input or
            the tokenizer tells.
        before: tokens put before every text; None takes those that the tokenizer's file adds.
        behind: tokens put behind it, likewise.
        tokens: the graph's input of token ids; None takes the one that is called as no other.
        mask: its input that tells tokens from padding; None takes the one that is called so.
        types: its input of segments, all of them 0; None takes the one that is called so.
    """

    tokenizer: str | None = None
    max_len: Length | None = None
    before: Marks | None = None
    behind: Marks | None = None
    tokens: str | None = None
    mask: str | None = None
    types: str | None = None

    def beside(self, folder: Path) -> Self:
        """The same, whose tokenizer is named from this folder."""
        if self.tokenizer is None or not (folder / self.tokenizer).exists():
            return self
        return self.model_copy(update={"tokenizer": str(folder / self.tokenizer)})


@dataclass(frozen=True, kw_only=True)
class TextInput:
    """The same, complete.

    Attributes:
        file: the input file with all that was found.
        tokenizer: reads texts; it adds no marks.
        length: tokens that the graph is given of every text; None where it takes any number.
        vocab_size: ids that the graph knows.
    """

    file: TextInputFile
    tokenizer: TextTokenizer
    length: int | None
    vocab_size: int

    @property
    def before(self) -> list[int]:
        """Ids put before every text."""
        return [self.tokenizer.id_of(token) for token in self.file.before or []]

    @property
    def behind(self) -> list[int]:
        """Ids put behind it."""
        return [self.tokenizer.id_of(token) for token in self.file.behind or []]

    @property
    def max_len(self) -> int:
        """Tokens of a text that are read, without marks."""
        return int(self.file.max_len or 0) - len(self.before) - len(self.behind)

    @property
    def roles(self) -> dict[str, str]:
        """The names of the graph's inputs by what they are for: tokens, mask, types."""
        named = {role: getattr(self.file, role) for role in ("tokens", *_CALLED)}
        return {role: name for role, name in named.items() if name is not None}

    def prepare(self, feed: Feed, kinds: Mapping[str, str]) -> Feed:
        """What a graph reads, computed in numpy: the independent check of the graph before it.

        Args:
            feed: `tokens` (B, N) int64 and `mask` (B, N) bool.
            kinds: types of the graph's inputs by name, as numpy calls them.
        """
        rows = [
            [*self.before, *tokens[real], *self.behind]
            for tokens, real in zip(feed["tokens"], feed["mask"], strict=True)
        ]
        longest = self.length or max(map(len, rows))
        ids = np.full((len(rows), longest), self.tokenizer.pad, np.int64)
        mask = np.zeros_like(ids)
        for place, row in enumerate(rows):
            ids[place, : len(row)], mask[place, : len(row)] = row, 1
        made = {"tokens": ids, "mask": mask, "types": np.zeros_like(ids)}
        return {name: made[role].astype(kinds[name]) for role, name in self.roles.items()}

    def keys(self) -> dict[str, Any]:
        """The keys of the input file with their values."""
        return self.file.keys()

    def recorded(self) -> dict[str, Any]:
        """What a manifest says of what is read."""
        return {
            "task": TEXTS,
            "input": TokensSpec(range=(0, self.vocab_size - 1)),
            "preprocessing": {"max_len": self.max_len},
        }

    def files(self) -> dict[str, bytes]:
        """What an artifact needs to read inputs, by name."""
        return {TOKENIZER: self.tokenizer.to_bytes()}

    def samples(self, labels: Sequence[str], data: str | None) -> Samples:
        """Texts of the data, evenly spread, or random tokens in rows of all lengths.

        Raises:
            ValueError: the data cannot be read, or hold other classes.
        """
        pad = self.tokenizer.pad
        if data is not None:
            texts = open_texts(data, label_names=list(labels))
            texts = texts.take(spread(len(texts), parity.MIN_SAMPLES))
            tokens = Ragged.of(self.tokenizer.rows(list(texts), self.max_len), np.uint32)
            name = data if data.startswith("hf:") else Path(data).name
            return Samples(inputs=tokens, pad=pad, labels=texts.labels, description=name)
        random, ids = np.random.default_rng(0), self.tokenizer.last_id + 1
        # In their order, for rows of one length need no padding.
        lengths = np.sort(np.ceil(self.max_len ** random.random(PROBE_SAMPLES)).astype(int))
        tokens = Ragged.of((random.integers(0, ids, length) for length in lengths), np.uint32)
        return Samples(inputs=tokens, pad=pad, labels=None, description=RANDOM_TOKENS)


@dataclass(frozen=True, kw_only=True)
class TextFacts:
    """What a source that reads tokens tells of them.

    Attributes:
        kinds: types of its inputs by name, as ONNX counts them.
        rows: of the tables of embeddings in which inputs are looked up, by their names.
        length: tokens that it reads, where it reads no other number.
        longest: tokens that it reads at most, where it says so and its tokenizer does not.
        folder: where its tokenizer may lie, if it has one.
    """

    kinds: Mapping[str, int]
    rows: Mapping[str, int]
    length: int | None = None
    longest: int | None = None
    folder: Path | None = None

    def complete(self, name: str, given: InputKeys) -> TextInput:
        """An input file with what source and tokenizer tell.

        Args:
            name: of the source.
            given: its input file.

        Raises:
            ValueError: they contradict each other, or nothing tells what is needed; one sentence
                says what.
        """
        given = _of_texts(name, given)
        roles, source = self.roles(name, given), self.tokenizer_of(given)
        tokenizer = _opened(name, source) if source else None
        missing = self.missing(name, given)
        if missing or tokenizer is None:
            raise ValueError(
                f"{name} does not tell {', '.join(missing)}: say so with --input (a YAML file with "
                "these keys)"
            )
        rows = self.rows.get(roles["tokens"])
        if rows is not None and tokenizer.last_id >= rows:
            raise ValueError(
                f"{Path(source).name} has ids up to {tokenizer.last_id}, and {name} embeddings up "
                f"to {rows - 1}: they belong to different models"
            )
        longest = given.max_len or self.length or _told_length(source) or self.longest or 0
        if self.length is not None and longest > self.length:
            got = f"the input file says max_len {longest}"
            raise ValueError(f"{name} reads {self.length} tokens; {got}")
        before, behind = tokenizer.marks()
        found = {
            "tokenizer": Path(source).name,  # a manifest names no folders
            "max_len": longest,
            "before": before if given.before is None else given.before,
            "behind": behind if given.behind is None else given.behind,
        }
        whole = TextInput(
            file=given.model_copy(update=found | roles),
            tokenizer=tokenizer,
            # Without a mask the answer would depend on how far a text is padded.
            length=self.length if self.length or "mask" in roles else longest,
            vocab_size=rows or tokenizer.last_id + 1,
        )
        if whole.max_len < 1:
            marks = len(whole.before) + len(whole.behind)
            raise ValueError(f"max_len must be above {marks}, the marks of a text, got {longest}")
        return whole

    def missing(self, name: str, given: InputKeys) -> list[str]:
        """The keys of an input file that neither it, the source nor a tokenizer tells."""
        given = _of_texts(name, given)
        source = self.tokenizer_of(given)
        found = [] if source else [f"tokenizer (a {TOKENIZER} beside it would do)"]
        told = given.max_len or self.length or self.longest
        if not (told or (source and _told_length(source))):
            found.append("max_len")
        return found

    def roles(self, name: str, given: TextInputFile) -> dict[str, str]:
        """The names of its inputs by what they are for: tokens, mask and types.

        Raises:
            ValueError: there are others, or none of tokens.
        """
        roles = self._named(name, given)
        left = [each for each in self.kinds if each not in roles.values()]
        for role, called in _CALLED.items():
            alike = [each for each in left if any(word in each.lower() for word in called)]
            if role not in roles and alike:
                roles[role] = alike[0]
                left.remove(alike[0])
        if "tokens" not in roles and left:
            roles["tokens"] = left.pop(0)
        if left or "tokens" not in roles:
            raise ValueError(
                f"{name} must read tokens, their mask and types, and nothing else, got "
                f"{', '.join(self.kinds)}: say which is which with --input"
            )
        for role, own in roles.items():
            if self.kinds[own] not in (_MASKS if role == "mask" else INTEGERS):
                kind = TensorProto.DataType.Name(self.kinds[own]).lower()
                raise ValueError(f"{name} must read {role} as integers, got {own} {kind}")
        return {role: roles[role] for role in ("tokens", *_CALLED) if role in roles}

    def _named(self, name: str, given: TextInputFile) -> dict[str, str]:
        """What an input file calls by name."""
        found = {role: getattr(given, role) for role in ("tokens", *_CALLED)}
        named = {role: str(own) for role, own in found.items() if own is not None}
        for role, own in named.items():
            if own not in self.kinds:
                got = f"the input file says {role}: {own}"
                raise ValueError(f"{name} reads {', '.join(self.kinds)}; {got}")
        return named

    def tokenizer_of(self, given: TextInputFile) -> str:
        """The tokenizer that is named, or lies beside the source; empty where there is none."""
        beside = None if self.folder is None else self.folder / TOKENIZER
        if given.tokenizer is not None or beside is None or not beside.is_file():
            return given.tokenizer or ""
        return str(beside)

    def told_tokenizer(self, name: str) -> str:
        """What the tokenizer beside it is, in words."""
        source = self.tokenizer_of(TextInputFile())
        if not source:
            return "not found"
        tokenizer, longest = _opened(name, source), _told_length(source)
        before, behind = map(" ".join, tokenizer.marks())
        cut = f", at most {longest} tokens" if longest else ""
        return f"{tokenizer.last_id + 1} ids, {f'{before} text {behind}'.strip()}{cut}"


def _opened(name: str, source: str) -> TextTokenizer:
    try:
        return load_tokenizer(source)
    except DataError as error:
        raise ValueError(f"{name}: {error}") from error


def _of_texts(name: str, given: InputKeys) -> TextInputFile:
    if not isinstance(given, TextInputFile):
        raise ValueError(f"{name} reads texts, and the input file is one of images")
    return given


def _told_length(source: str) -> int | None:
    """The length that a tokenizer's file, or the one that configures it, cuts texts to."""
    path = Path(source)
    beside = path.with_name("tokenizer_config.json")
    for file, keys in ((path, ("truncation", "max_length")), (beside, ("model_max_length",))):
        found: Any = read_json(file.read_bytes()) if file.is_file() else None
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, int | float) and 1 <= found <= _LONGEST:
            return int(found)
    return None
