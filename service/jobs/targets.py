"""Remote endpoints that evaluations may ask: those of `ASSAY_TARGETS` and no others.

Nothing here asks any of them. What a request is checked against (the size of images, the classes)
the operator says, so only the process of an evaluation opens connections.
"""

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from core.yaml import read_strict
from data.images import ImageSpec
from robustness.attacks.base import Access, shown
from robustness.kinds import Shows, read_shows
from robustness.remote.connection import Manners, checked_url
from robustness.remote.mapping import MappingFile, read_mapping
from runtimes.artifact import Artifact, open_artifact
from runtimes.tasks import IMAGES, TEXTS, Task

SETTING = "ASSAY_TARGETS"
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
_Text = Annotated[str, Field(min_length=1, max_length=1000)]
_Count = Annotated[int, Field(gt=0)]
_Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Side = Annotated[int, Field(ge=1, le=4096)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Images(_Strict):
    channels: Literal[1, 3]
    height: _Side
    width: _Side


class Entry(_Strict):
    """One endpoint as the file has it; paths are relative to the file."""

    url: _Text
    model: _Text
    shows: str = "scores"
    input: Literal["text"] | _Images | None = None
    labels: Annotated[list[_Text], Field(min_length=2)] | None = None
    mapping: _Text | None = None
    surrogate: _Text | None = None
    output_tensor: _Text | None = None
    key_env: _Text | None = None
    key_file: _Text | None = None
    max_queries: _Count | None = None
    per_second: _Amount | None = None
    concurrency: Annotated[int, Field(ge=1, le=64)] = 2
    batch: _Count = 64
    timeout: _Amount = 60
    patience: _Amount = 300
    price: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        checked_url(self.url, "url")
        read_shows(self.shows, "shows")
        if self.key_env and self.key_file:
            raise ValueError("key_env and key_file name one key: leave one of them out")
        if self.labels and len(set(self.labels)) < len(self.labels):
            raise ValueError("labels must not name a class twice")
        return self


class _Entries(RootModel[dict[_Name, Entry]]):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteTarget:
    """A listed endpoint, as far as a request is checked against it; see `Artifact`.

    Attributes:
        name: in the service.
        entry: what the file says.
        folder: of the file.
        labels: names of its K classes.
        image_spec: the size of its images, or None where it reads texts.
        shows: what attacks see of an answer, and of how many classes; 0 for all, or one.
        mapping: how it is asked where it does not speak V2.
        surrogate: a local copy, whose gradients attacks follow.
        digest: sha256 of what is asked, and how.
    """

    name: str
    entry: Entry
    folder: Path = field(repr=False)
    labels: list[str]
    image_spec: ImageSpec | None
    shows: tuple[Shows, int]
    mapping: MappingFile | None
    surrogate: Artifact | None
    digest: str

    @property
    def version(self) -> str:
        """That of the model on the server, where one is asked for."""
        own = self.mapping is not None and self.mapping.input.tokenizer is None
        return "" if own else self.entry.model.partition(":")[2]

    @property
    def task(self) -> Task:
        """What the model does."""
        return TEXTS if self.image_spec is None else IMAGES

    @property
    def gradients(self) -> bool:
        """Whether attacks can follow gradients, which are the copy's."""
        return self.surrogate is not None

    @property
    def elliptical(self) -> bool:
        """Whether the copy has elliptical attention."""
        return self.surrogate is not None and self.surrogate.elliptical

    @property
    def access(self) -> list[Access]:
        """What attacks may need and get."""
        return shown(
            gradients=self.gradients, weights=False, token_wise=False, graph=False,
            shows=self.shows[0],
        )  # fmt: skip

    @property
    def manners(self) -> Manners:
        """How the endpoint is treated."""
        known = ("per_second", "concurrency", "batch", "timeout", "patience")
        return Manners(**{name: getattr(self.entry, name) for name in known})

    @property
    def beside(self) -> Path | None:
        """The folder of the mapping."""
        return None if self.entry.mapping is None else (self.folder / self.entry.mapping).parent

    def key(self) -> str | None:
        """The key, which stays out of messages.

        Raises:
            ValueError: it is not where the file says.
        """
        variable, file = self.entry.key_env, self.entry.key_file
        if variable is not None:
            found = os.environ.get(variable, "").strip()
            where = f"the environment has no {variable!r}"
        elif file is not None:
            path = self.folder / file
            found = path.read_text(encoding="utf-8").strip() if path.is_file() else ""
            where = "its key_file is missing or empty"
        else:
            return None
        if not found:
            raise ValueError(f"{SETTING}: {self.name}: the key is missing, {where}")
        return found

    def describe(self) -> dict[str, Any]:
        """The endpoint as ``/v1/models`` shows it: not where it lies, which reports tell."""
        spec = self.image_spec
        pixels = spec and [-1, spec.channels, spec.height, spec.width]
        read = {"name": "images", "dtype": "float32", "shape": pixels, "range": [0, 1]}
        return {
            "name": self.name,
            "version": self.version,
            "default": False,
            "digest": self.digest,
            "task": self.task,
            "kind": "remote",
            "architecture": None,
            "runtime": "endpoint",
            "precision": "unknown",
            "gradients": self.gradients,
            "access": self.access,
            "measuring": False,
            "labels": self.labels,
            "input": read if spec else None,
            "preprocessing": spec.to_dict() if spec else {},
            "metrics": {},
            "card": None,
        }


def read_targets(path: Path | None) -> dict[str, RemoteTarget]:
    """The endpoints of a file, by name; none without a file.

    Raises:
        ValueError: the file, or one that it names, cannot be read or breaks a rule.
    """
    if path is None:
        return {}
    try:
        entries = read_strict(path, _Entries, SETTING).root
        return {name: _target(name, entry, path.parent) for name, entry in entries.items()}
    except OSError as error:
        raise ValueError(f"{SETTING}: {error.filename} cannot be read: {error.strerror}") from None


def _target(name: str, entry: Entry, folder: Path) -> RemoteTarget:
    where = f"{SETTING}: {name}"
    mapping = read_mapping(folder / entry.mapping, where) if entry.mapping else None
    try:
        surrogate = open_artifact(folder / entry.surrogate) if entry.surrogate else None
    except ValueError as error:
        raise ValueError(f"{where}: surrogate: {error}") from None
    labels = entry.labels or (mapping and mapping.labels) or (surrogate and surrogate.labels)
    sources = [each for each in (entry.input, mapping, surrogate) if each is not None]
    if not labels or not sources:
        lacks = "input" if labels else "labels"
        raise ValueError(
            f"{where}: {lacks} must be given, for the endpoint is not asked before an evaluation; "
            "a mapping or a surrogate may say it, too"
        )
    specs = [_image_spec(each) for each in sources]
    if any(spec != specs[0] for spec in specs):
        raise ValueError(f"{where}: input, mapping and surrogate must read the same")
    whole = entry.model_dump(include={"url", "model", "output_tensor"}) | {
        "labels": labels,
        "input": specs[0] and specs[0].to_dict(),
        "shows": entry.shows,
        "mapping": mapping and mapping.model_dump(mode="json"),
        "surrogate": surrogate and surrogate.digest,
    }
    return RemoteTarget(
        name=name,
        entry=entry,
        folder=folder,
        labels=labels,
        image_spec=specs[0],
        shows=_seen(entry, mapping),
        mapping=mapping,
        surrogate=surrogate,
        digest=hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest(),
    )


def _image_spec(source: Any) -> ImageSpec | None:
    """The size of images; None for texts."""
    if isinstance(source, MappingFile):
        source = source.input
    if isinstance(source, Artifact):
        if source.task == TEXTS:
            return None
        source = source.image_spec
    if source == "text" or getattr(source, "kind", "") in ("text", "tokens"):
        return None
    return ImageSpec(channels=source.channels, height=source.height, width=source.width)


def _seen(entry: Entry, mapping: MappingFile | None) -> tuple[Shows, int]:
    """What attacks see: as the file says, and no more than answers hold."""
    shows, best = read_shows(entry.shows, "shows")
    if shows == "label" or (mapping and mapping.answer.label is not None):
        return "label", 1
    count = mapping.answer.top.count if mapping and mapping.answer.top else None
    return ("top-k", min(best or count, count)) if count else (shows, best)
