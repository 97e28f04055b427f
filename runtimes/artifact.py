"""Open an artifact: the folder that leaves training for good.

Nothing here imports torch, so that the process that serves predictions stays small. Whatever an
artifact contains is read through `Artifact.read`, which checks the bytes that are used and not
only the bytes that lay there earlier.
"""

import json
import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.message import Message
from onnx import ModelProto, TensorProto
from pydantic import ValidationError
from tokenizers import Tokenizer

from core.files import sha256
from core.json import TooManyItems, read_json
from core.names import listed
from data.errors import DataError
from data.images import ImageSpec
from data.tokenizer import TextTokenizer
from runtimes.compose import compose
from runtimes.manifest import (
    AFTER,
    BEFORE,
    MANIFEST,
    ONNX,
    SCHEMA_VERSION,
    TOKENIZER,
    Manifest,
    TextSpec,
)
from runtimes.tasks import Task

logger = logging.getLogger(__name__)

__all__ = ["MANIFEST", "Artifact", "ArtifactError", "Manifest", "find_artifacts", "open_artifact"]

CARD_JSON, CARD_TEXT = "card.json", "card.md"
_SHOWN = 5  # artifacts in a message
_MAX_BYTES = {MANIFEST: 2_000_000, CARD_JSON: 2_000_000, TOKENIZER: 16 * 2**20}
# Reading holds the interpreter, and with it whatever is being served.
_MAX_ITEMS, _MAX_LEVELS = 100_000, 64


class ArtifactError(ValueError):
    """An artifact that cannot be trusted or read; the message names the file, never a full path."""


@dataclass(frozen=True, slots=True)
class Artifact:
    """A verified artifact; its digest is the sha256 of manifest.json, hexadecimal.

    `card` is the model card beside the manifest, if there is one for this digest.
    """

    folder: Path
    manifest: Manifest = field(compare=False)
    digest: str
    card: dict[str, Any] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self.manifest.name

    @property
    def version(self) -> str:
        """Version of the model."""
        return self.manifest.version

    @property
    def labels(self) -> list[str]:
        """Names of the classes, in order of index."""
        return self.manifest.labels

    @property
    def task(self) -> Task:
        """What the model does."""
        return self.manifest.task

    @property
    def gradients(self) -> bool:
        """Whether attacks can follow its gradients."""
        return self.manifest.gradients

    @property
    def elliptical(self) -> bool:
        """Whether it has elliptical attention, whose gradients are taken in two ways."""
        return self.attention == "elliptical"

    @property
    def attention(self) -> str | None:
        """The mechanism of its transformer, by name; None where the config names none."""
        config = self.manifest.config
        if "elliptical" in config:  # as older artifacts have it
            return "elliptical" if config["elliptical"] else "dot"
        return config.get("attention")

    @property
    def image_spec(self) -> ImageSpec:
        """Size, channels and resampling of an image model's input."""
        return self.manifest.image_spec

    @property
    def text_spec(self) -> TextSpec:
        """Length of a text model's input."""
        return self.manifest.text_spec

    def tokenizer(self) -> TextTokenizer:
        """The tokenizer of a text model, from verified bytes.

        Raises:
            ArtifactError: there is none, it changed, cannot be read, or has ids that the model has
                not.
        """
        content = self.read(TOKENIZER)
        try:
            library = Tokenizer.from_str(content.decode("utf-8"))
            tokenizer = TextTokenizer(library)
        except DataError as error:
            raise ArtifactError(f"{TOKENIZER}: {error}") from error
        except Exception as error:  # the library raises its errors as bare exceptions
            raise ArtifactError(f"{TOKENIZER} is not a readable tokenizer") from error
        largest = max(library.get_vocab(with_added_tokens=True).values())
        last = int(self.manifest.input.range[1])
        if largest > last:
            raise ArtifactError(f"{TOKENIZER} has ids up to {largest}, the model up to {last}")
        return tokenizer

    def file(self, name: str) -> Path:
        """The path of one of the artifact's files.

        Raises:
            ArtifactError: the manifest lists no such file.
        """
        if name not in self.manifest.files:
            raise ArtifactError(f"{name} is not a file of the artifact {self.name}")
        return self.folder / name

    def read(self, name: str) -> bytes:
        """The bytes of one of the artifact's files, verified again.

        Raises:
            ArtifactError: no such file, or its sha256 is no longer that of the manifest.
        """
        content = _read_plain(self.file(name))
        self._require_digest(name, sha256(content))
        return content

    def graph(self) -> bytes:
        """The graph that is run, as ONNX: an imported one with those that were added around it.

        Raises:
            ArtifactError: see `read`.
        """
        content = self.read(ONNX)
        if self.manifest.source is None:
            return content
        return compose(self.read(BEFORE), content, self.read(AFTER))

    def verify(self, name: str) -> None:
        """Check one of the artifact's files without holding it in memory.

        Raises:
            ArtifactError: see `read`.
        """
        path = self.file(name)
        _refuse_odd(path)
        try:
            digest = sha256(path)
        except OSError as error:
            raise ArtifactError(f"{path.name} cannot be read: {error.strerror}") from None
        self._require_digest(name, digest)

    def _require_digest(self, name: str, digest: str) -> None:
        if digest != self.manifest.files[name]:
            raise ArtifactError(f"{name} does not have the sha256 that {MANIFEST} names")


def open_artifact(folder: Path) -> Artifact:
    """Open a folder as an artifact after verifying every file in it.

    Raises:
        ArtifactError: no manifest, an unknown schema version, an unknown or wrong field, a file
            that is missing, unlisted, a link, not plainly named or of another sha256, a graph that
            keeps data outside its file, or a folder that is a link.
    """
    if folder.is_symlink():
        raise ArtifactError(f"{folder.name} must be a folder, not a link")
    if not folder.is_dir():
        raise ArtifactError(f"{folder.name} is not an artifact: no such folder")
    if not os.path.lexists(folder / MANIFEST):
        raise ArtifactError(_no_manifest(folder))
    content = _read_plain(folder / MANIFEST)
    artifact = Artifact(folder, _parse_manifest(content), sha256(content))
    _refuse_unlisted(artifact)
    for name in artifact.manifest.files:
        if not name.endswith(".onnx"):
            artifact.verify(name)
        elif refers_outside(artifact.read(name)):
            raise ArtifactError(f"{name} must be a readable graph without external data")
    card = _read_card(artifact)
    return Artifact(folder, artifact.manifest, artifact.digest, card)


def find_artifacts(roots: Sequence[Path]) -> list[Artifact]:
    """Open every artifact below some folders.

    Args:
        roots: each an artifact's folder, or a folder of them. Other subfolders are passed over.

    Returns:
        The artifacts, root by root, by folder name within a root.

    Raises:
        ArtifactError: a root does not exist, or one of the artifacts is refused.
    """
    found = []
    for root in map(Path, roots):
        if not root.is_dir():
            raise ArtifactError(f"{root.name} is not a folder of artifacts: no such folder")
        inside = sorted(path for path in root.iterdir() if not path.name.startswith("."))
        folders = [root] if (root / MANIFEST).exists() else inside
        found += [_open_named(path) for path in folders if (path / MANIFEST).exists()]
        for folder in sorted({path.parent for path in root.glob("*/*.onnx")}):
            if not (folder / MANIFEST).exists():
                logger.warning("%s, and is passed over", _no_manifest(folder))
    return found


def _open_named(folder: Path) -> Artifact:
    try:
        return open_artifact(folder)
    except ArtifactError as error:  # which names a file that every artifact has
        raise ArtifactError(f"{folder.name}: {error}") from error


def _parse_manifest(content: bytes) -> Manifest:
    fields = _parse_json(content, MANIFEST)
    version = fields.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise ArtifactError(f"{MANIFEST}: schema_version must be {SCHEMA_VERSION}, got {version!r}")
    try:
        return Manifest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the whole"
        raise ArtifactError(f"{MANIFEST}: {where}: {first['msg']}") from None


def _parse_json(content: bytes, name: str) -> dict[str, Any]:
    try:
        fields = read_json(content, most=_MAX_ITEMS, levels=_MAX_LEVELS)
        # Neither 1e999 nor half a surrogate could be told to a client again.
        json.dumps(fields, allow_nan=False, ensure_ascii=False).encode()
    except TooManyItems as error:
        raise ArtifactError(f"{name} must not have {error}") from None
    except (ValueError, RecursionError):
        raise ArtifactError(f"{name} is not valid JSON") from None
    if not isinstance(fields, dict):
        raise ArtifactError(f"{name} must be a JSON object, got {type(fields).__name__}")
    return fields


def _read_plain(path: Path) -> bytes:
    _refuse_odd(path)
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path.name} cannot be read: {error.strerror}") from None


def _no_manifest(folder: Path) -> str:
    name, within = folder.name or "the folder", sorted(folder.glob(f"*/{MANIFEST}"))
    others = listed([f"{folder.name}/{path.parent.name}" for path in within], _SHOWN)
    hint = f"; name one of the artifacts in it: {others}" if within else ""
    if any(folder.glob("*.onnx")):
        hint = "; `./assay export import` makes one of the ONNX file in it"
    return f"{name} is not an artifact: {MANIFEST} is missing{hint}"


def _refuse_odd(path: Path) -> None:
    if path.is_symlink():
        raise ArtifactError(f"{path.name} must be a file, not a link")
    if not path.is_file():
        raise ArtifactError(f"{path.name} is missing")
    largest = _MAX_BYTES.get(path.name)
    if largest is not None and path.stat().st_size > largest:
        raise ArtifactError(f"{path.name} must be at most {largest} bytes")


def _refuse_unlisted(artifact: Artifact) -> None:
    known = {MANIFEST, CARD_JSON, CARD_TEXT, *artifact.manifest.files}
    for path in sorted(artifact.folder.iterdir()):
        if path.is_symlink():
            raise ArtifactError(f"{path.name} must be a file, not a link")
        if path.name not in known:
            raise ArtifactError(
                f"{path.name} lies in the artifact, but {MANIFEST} does not list it"
            )


def _read_card(artifact: Artifact) -> dict[str, Any] | None:
    path = artifact.folder / CARD_JSON
    if not path.exists() and not path.is_symlink():
        return None
    card = _parse_json(_read_plain(path), CARD_JSON)
    # A card of another digest scores another model.
    return card if card.get("digest") == artifact.digest else None


def refers_outside(content: bytes) -> bool:
    """Whether a graph, as bytes, names external data anywhere, or cannot be parsed at all.

    A digest vouches for one file; data in another file would escape it, and its path could leave
    the artifact's folder.
    """
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:  # protobuf's C and Python parsers raise different, private types
        return True
    return any(
        tensor.data_location == TensorProto.EXTERNAL or tensor.external_data
        for tensor in tensors(model)
    )


def tensors(message: Message) -> Iterator[TensorProto]:
    """The tensors anywhere in a message."""
    if isinstance(message, TensorProto):
        yield message
        return
    for kind, value in message.ListFields():
        if kind.message_type is not None:
            for part in [value] if isinstance(value, Message) else value:
                yield from tensors(part)
