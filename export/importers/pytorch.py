"""Models in PyTorch: they are exported, and asked, in a process of their own.

What runs there is the user's code, or may be: a program holds pickles, a function is anything. The
process writes nowhere but into a folder of its own, and what comes back is ONNX and numbers.
"""

import json
import os
import re
import sys
import tempfile
import zipfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from core.files import sha256
from export.child import run_child
from export.importers.base import Source, Spec, axes_of
from export.importers.source import SourceGraph
from export.importers.text_input import TextInput
from export.samples import Samples

if TYPE_CHECKING:
    from torch import nn
    from torch.export import ExportedProgram

GRAPH, ANSWERS, SAMPLES, SPEC = "graph.onnx", "answers.npy", "samples.npy", "spec.json"
_TIMEOUT_S = 3600
_KINDS = {1: "uint8", 6: "float16", 7: "float32", 8: "float64"}  # as torch.export numbers them
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class Refused(ValueError):
    """Why a source is not taken; the message goes on after its name."""


@dataclass(frozen=True, kw_only=True)
class TorchSource(Source):
    """A model in PyTorch.

    Attributes:
        environment: variables of the process that loads it.
        given: how it is found there.
    """

    environment: ClassVar[Mapping[str, str]] = {}
    usual = "nchw"

    given: str

    @classmethod
    @abstractmethod
    def load(cls, given: str) -> "nn.Module | ExportedProgram":
        """The model, in the process that exports it; anything may be raised."""

    def answered(self, samples: Samples, spec: Spec) -> tuple[SourceGraph, np.ndarray]:
        """Export it, and ask it; see `Source.answered`."""
        with tempfile.TemporaryDirectory() as name:
            folder, own = Path(name, "made"), Path(name, "own")
            folder.mkdir()
            self._write(folder, samples, spec)
            paths = filter(None, (os.environ.get("PYTHONPATH"), str(Path.cwd())))
            ended = run_child(
                "export.importers.trace",
                [self.format, self.given, str(folder)],
                own=own,
                writable=[folder],
                timeout=_TIMEOUT_S,
                environment={"PYTHONPATH": os.pathsep.join(paths), **self.environment},
            )
            if ended.status != 0:
                raise ValueError(f"{self.name}: {ended.reason}")
            graph = SourceGraph.of(self.name, (folder / GRAPH).read_bytes())
            return graph, np.load(folder / ANSWERS, allow_pickle=False)

    def _write(self, folder: Path, samples: Samples, spec: Spec) -> None:
        """Leave the samples to the other process: pixels, or ids over their mask, (N, 2, L)."""
        inputs, told = samples.inputs, {"dtype": self.dtype, "input": spec.keys()}
        if isinstance(spec, TextInput):
            given = spec.prepare(samples.feed(), dict.fromkeys(spec.roles.values(), "int64"))
            inputs, told = np.stack(list(given.values()), axis=1), {"names": list(given)}
        np.save(folder / SAMPLES, np.asarray(inputs))
        (folder / SPEC).write_text(json.dumps(told))


@dataclass(frozen=True, kw_only=True)
class Program(TorchSource):
    """A file that torch.export.save wrote, with what its description says."""

    format = "program"
    wanted = "a program of torch.export (.pt2)"

    @classmethod
    def takes(cls, given: str) -> bool:
        """Whether it is called as one."""
        return given.endswith(".pt2")

    @classmethod
    def open(cls, given: str) -> "Program":
        """Read the description in it, which is JSON."""
        path = Path(given)
        if not path.is_file():
            raise ValueError(
                f"{path.name} must be a program of torch.export: there is no such file"
            )
        try:
            with zipfile.ZipFile(path) as archive:
                [name] = [
                    each for each in archive.namelist() if each.endswith("/models/model.json")
                ]
                graph = json.loads(archive.read(name))["graph_module"]
            inputs, outputs = _ends(graph, "input"), _ends(graph, "output")
        except (zipfile.BadZipFile, ValueError, LookupError, TypeError):
            raise ValueError(
                f"{path.name} is no program of torch.export, or was cut short"
            ) from None
        [(dtype, shape)] = _single(path.name, "read one input, images", inputs)
        [(_, scores)] = _single(path.name, "be a classifier, which gives one output", outputs)
        if len(shape) != 4 or dtype not in _KINDS.values():
            got = f"{axes_of(shape)} {dtype}"
            raise ValueError(f"{path.name} must read images of four axes, got {got}")
        if len(scores) != 2 or scores[1] == 1:
            rule = "be a classifier, which gives a score for each of 2 classes or more"
            raise ValueError(f"{path.name} must {rule}, got {axes_of(scores)}")
        return cls(
            name=path.name,
            given=str(path.absolute()),
            sha256=sha256(path.read_bytes()),
            dtype=dtype,
            shape=shape,
            classes=scores[1],
        )

    @classmethod
    def load(cls, given: str) -> "ExportedProgram":
        """Open it, which unpickles parts of it."""
        import torch

        return torch.export.load(given)

    def facts(self) -> list[tuple[str, str]]:
        """What it tells; see `Source.facts`."""
        return [
            ("file", self.name),
            ("sha256", self.sha256),
            ("input", f"{axes_of(self.shape)} {self.dtype}"),
            ("layout", self.layout or "not told"),
            ("classes", str(self.classes or "not told")),
        ]


def _ends(graph: Mapping[str, Any], end: str) -> list[tuple[str, list[int | None]]]:
    """Kind and axes of what a program reads or gives, as its JSON says."""
    found = []
    for spec in graph["signature"][f"{end}_specs"]:
        if f"user_{end}" not in spec:
            continue
        argument = spec[f"user_{end}"]["arg"]
        tensor = graph["graph"]["tensor_values"].get(argument.get("as_tensor", {}).get("name"), {})
        axes = [size.get("as_int") for size in tensor.get("sizes", [])]
        found.append((_KINDS.get(tensor.get("dtype"), "of another type"), axes))
    return found


def _single(name: str, rule: str, found: list[Any]) -> list[Any]:
    if len(found) != 1:
        raise ValueError(f"{name} must {rule}, got {len(found)}")
    return found


@dataclass(frozen=True, kw_only=True)
class PythonFunction(TorchSource):
    """A function of the user's own that returns a module; nothing is known of it."""

    format = "callable"
    wanted = "module:function"

    @classmethod
    def takes(cls, given: str) -> bool:
        """Whether it is written as one."""
        return _NAME.fullmatch(given) is not None

    @classmethod
    def open(cls, given: str) -> "PythonFunction":
        """Find the file of its module, which is not imported here."""
        module = given.partition(":")[0]
        path = _module_file(module, [*sys.path, str(Path.cwd())])
        if path is None:
            raise ValueError(f"{given} must be module:function; there is no module {module!r}")
        return cls(name=given, given=given, sha256=sha256(path.read_bytes()))

    @classmethod
    def load(cls, given: str) -> "nn.Module":
        """Import the module and call the function."""
        import importlib

        from torch import nn

        module, function = given.split(":")
        found = getattr(importlib.import_module(module), function, None)
        if not callable(found):
            raise Refused(f"must be module:function; {module} has no function {function!r}")
        made = found()
        if not isinstance(made, nn.Module):
            raise Refused(f"must return a torch.nn.Module, got {type(made).__name__}")
        return made

    def facts(self) -> list[tuple[str, str]]:
        """What it tells; see `Source.facts`."""
        return [("function", self.name), ("sha256 of its module", self.sha256)]


def _module_file(module: str, folders: Sequence[str]) -> Path | None:
    """Where a module lies; nothing of it or of its packages is run."""
    place, parts = None, module.split(".")
    for count in range(1, len(parts) + 1):
        place = PathFinder.find_spec(".".join(parts[:count]), folders)
        folders = list(place and place.submodule_search_locations or [])
    path = Path(place.origin) if place and place.origin else None
    return path if path and path.is_file() else None
