"""What can be imported: a base class, of which each kind of source makes one."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np

from export.importers.input_file import InputFile, Layout
from export.importers.text_input import TextFacts, TextInput, TextInputFile
from export.samples import Samples
from runtimes.manifest import SourceFormat

if TYPE_CHECKING:
    from export.importers.source import SourceGraph

Given = InputFile | TextInputFile
"""An input file, of images or of texts."""

Spec = InputFile | TextInput
"""The same, complete."""

_CHANNELS = (1, 3)


@dataclass(frozen=True, kw_only=True)
class Source(ABC):
    """A classifier from elsewhere, of which only is known what it tells without being run.

    Attributes:
        format: what it is, as manifests say it.
        wanted: what it looks like on a command line.
        usual: the order of its input's axes where they could be in both.
        name: of its file, folder or function.
        sha256: the digest of its bytes.
        dtype: what it reads, as numpy calls it.
        shape: the length of its input's axes, None where it takes any; none where it does not say.
        classes: how many scores it gives, where it says so.
        labels: the names of its classes in order of index; none where it does not say.
        told: what it says of its input where no input file is given.
        texts: what it says of the tokens that it reads; None where it reads images.
    """

    format: ClassVar[SourceFormat]
    wanted: ClassVar[str]
    usual: ClassVar[Layout | None] = None

    name: str
    sha256: str
    dtype: str = "float32"
    shape: Sequence[int | None] = ()
    classes: int | None = None
    labels: list[str] = field(default_factory=list)
    told: Given = InputFile()
    texts: TextFacts | None = None

    @classmethod
    @abstractmethod
    def takes(cls, given: str) -> bool:
        """Whether what was given, a path or a name, is of this kind; nothing of it is run."""

    @classmethod
    @abstractmethod
    def open(cls, given: str) -> Self:
        """Read what it tells.

        Raises:
            ValueError: it cannot be read, or is no classifier of images; one sentence says why.
        """

    @abstractmethod
    def answered(self, samples: Samples, spec: Spec) -> "tuple[SourceGraph, np.ndarray]":
        """Its graph, and what it gives on its own for each sample, without any graph of ours.

        Args:
            samples: N images.
            spec: its input file, complete.

        Returns:
            The graph and scores (N, K) of any kind.

        Raises:
            ValueError: it does not run on its input, or cannot be written as a graph.
        """

    @abstractmethod
    def facts(self) -> list[tuple[str, str]]:
        """What it tells, as names with values for people."""

    @property
    def layout(self) -> Layout | None:
        """The order of its axes; None where it is not known."""
        first, last = (self.shape[axis] in _CHANNELS for axis in (1, -1)) if self.shape else (0, 0)
        if bool(first) == bool(last):
            return self.usual
        return "nchw" if first else "nhwc"

    def complete(self, given: Given) -> Spec:
        """An input file with what the graph tells.

        Raises:
            ValueError: the two contradict each other, or neither tells what is needed; the message
                names the keys.
        """
        if self.texts is not None:
            return self.texts.complete(self.name, given)
        given = self._of_images(given)
        layout, missing = given.layout or self.layout, self.missing(given)
        if missing:
            raise ValueError(
                f"{self.name} does not tell {', '.join(missing)}: say so with --input "
                "(imagenet, cifar, or a YAML file with these keys)"
            )
        if self.dtype == "uint8" and (
            given.mean or given.std or given.range not in (None, [0, 255])
        ):
            raise ValueError(f"{self.name} reads uint8: range is [0, 255], without mean and std")
        axes = (1, 2, 3) if layout == "nchw" else (3, 1, 2)
        channels, height, width = (self.shape[axis] if self.shape else None for axis in axes)
        kind = given.channels or ("grey" if channels == 1 else "rgb")
        size = given.size or [int(height or 0), int(width or 0)]
        complete = given.model_copy(
            update={
                "layout": layout,
                "channels": kind,
                "size": size,
                "range": given.range or [0.0, 255.0],
            }
        )
        wanted = [1 if kind == "grey" else 3, *size]
        known = [channels, height, width]
        if any(axis not in (None, own) for axis, own in zip(known, wanted, strict=True)):
            got = f"channels {kind}, size {size}"
            raise ValueError(f"{self.name} reads {axes_of(self.shape)}; the input file says {got}")
        for key in ("mean", "std"):
            values = getattr(complete, key)
            if values is not None and len(values) != wanted[0]:
                raise ValueError(f"{key} must have {wanted[0]} values, got {len(values)}")
        complete.spec()
        return complete

    def missing(self, given: Given) -> list[str]:
        """The keys of an input file that neither it nor the graph tells."""
        if self.texts is not None:
            return self.texts.missing(self.name, given)
        given = self._of_images(given)
        layout = given.layout or self.layout
        found = [] if layout else ["layout"]
        axes = (1, 2, 3) if layout == "nchw" else (3, 1, 2)
        known = [self.shape[axis] if self.shape else None for axis in axes]
        if given.channels is None and (layout is None or known[0] is None):
            found.append("channels")
        if given.size is None and (layout is None or None in known[1:]):
            found.append("size")
        if given.range is None and self.dtype != "uint8":
            found.append("range (with mean and std, if it has any)")
        return found

    def _of_images(self, given: Given) -> InputFile:
        if not isinstance(given, InputFile):
            raise ValueError(f"{self.name} reads images, and the input file is one of texts")
        return given


def axes_of(shape: Sequence[int | None]) -> str:
    """The length of axes as people write it."""
    return "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"
