"""Properties in VNN-LIB 2.0: does anything within eps of an image mislead the model?

Each asks for an image in the box [x - eps, x + eps], cut to [0, 1], to which the graph gives some
other class at least the score of the label: "sat" is a counterexample, "unsat" a proof. Values are
declared `real`: a proof is about the graph in exact arithmetic, not about rounding in float32.

Source: the standard VNN-LIB 2.0 and the files of VNN-COMP.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from onnx import ModelProto

from core.files import sha256, write_whole
from export.verifiable import metric_names, metric_of, verifiable
from robustness import store
from robustness.parsing import parse_eps
from robustness.report.schema import FILE, ModelFigures, ModelFlags, Part, Report, parse_report
from robustness.verify import find_artifact
from runtimes.artifact import Artifact
from runtimes.onnx import open_session

INDEX, INSTANCES = "properties.json", "instances.csv"
_LARGEST_DIFFERENCE = 1e-3
Metric = Literal["computed", "frozen"]
_COMPUTED = "The graph is that of the model, m of elliptical attention included."
_FROZEN = (
    "m of elliptical attention is FROZEN at its value for the unchanged image: a weaker property "
    "of another function than the model, in which m moves with the image. A proof of it proves "
    "nothing of the model; a counterexample has to be tried on the model."
)


class Property(Part):
    """One image, one budget.

    `file` and `onnx` are paths in the folder, `digests` their sha256; `model` is the digest of the
    artifact, `sample` the position of the image in the report.
    """

    file: str
    onnx: str
    digests: tuple[str, str]
    model: str
    sample: int
    label: int
    eps: str
    eps_value: float
    metric: Metric


class Properties(Part):
    """What a folder of properties is about.

    `report` is the sha256 of the report; `difference` the largest one between logits of the graphs
    and of the served model, relative to the largest logit, on the images.
    """

    report: str
    difference: float
    properties: list[Property]


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """A report with the images of one of its models.

    Attributes:
        figures: of the model.
        artifact: the model.
        pixels: (N, C, H, W) float32, as the model read them.
        labels: (N,) int64; its own predictions where there are none.
        flags: what the report says of each.
    """

    figures: ModelFigures
    artifact: Artifact
    pixels: np.ndarray
    labels: np.ndarray
    flags: list[ModelFlags]

    @property
    def graph_name(self) -> str:
        """What files about the model begin with."""
        return f"{self.artifact.name}-{self.artifact.version}"


def read_images(path: Path, folders: Sequence[Path] | None) -> tuple[Report, str, list[Images]]:
    """Read a report, the images beside it, and find its models.

    Args:
        path: `report.json`, or its folder.
        folders: artifacts, or folders of them; `artifacts` when not given.

    Returns:
        The report, its sha256, and each model.

    Raises:
        OSError: the report or an image is missing.
        ValueError: it is no report on images, or about an endpoint; or a model is not there.
    """
    path = path / FILE if path.is_dir() else path
    content = path.read_bytes()
    report = parse_report(content)
    if report.data.kind != "image":
        raise ValueError("properties are written for images, and the report is about texts")
    found = []
    for place, figures in enumerate(report.summary.models):
        if figures.endpoint is not None:
            raise ValueError(f"{figures.name} lies behind an address: nobody can see its graph")
        parts = [
            store.whole(store.clean_path(path.parent, figures.digest, one.start))["clean"]
            for one in store.ranges(len(report.samples))
        ]
        flags = [sample.models[place] for sample in report.samples]
        labels = [
            own.clean.index if sample.label is None else sample.label
            for sample, own in zip(report.samples, flags, strict=True)
        ]
        found.append(
            Images(
                figures=figures,
                artifact=find_artifact(folders, figures.digest, figures.name),
                pixels=np.concatenate(parts),
                labels=np.array(labels, np.int64),
                flags=flags,
            )
        )
    return report, sha256(content), found


def write_properties(
    path: Path,
    output: Path,
    *,
    folders: Sequence[Path] | None = None,
    eps: Sequence[str] | None = None,
    timeout: int = 300,
    frozen: bool = False,
) -> Properties:
    """Write a graph for each model of a report, and a property for each image and budget.

    Args:
        path: see `read_images`.
        output: gets `onnx/`, `vnnlib/`, `instances.csv` and `properties.json`.
        folders: see `read_images`.
        eps: radii (l-infinity); those of the report's attacks when not given.
        timeout: seconds that `instances.csv` gives a verifier for one.
        frozen: write properties with m frozen beside those of elliptical models, each with a graph
            of its own.

    Raises:
        OSError: see `read_images`, or a file cannot be written.
        ValueError: see `read_images`; there is no radius; or a model is not served in fp32, or has
            operators that cannot be written for verifiers.
    """
    report, digest, models = read_images(path, folders)
    radii = {text: parse_eps(text) for text in eps or _radii(report)}
    if not radii:
        raise ValueError("name radii with --eps: the report has no attack in l-infinity")
    written, difference = [], 0.0
    for images in models:
        content = _graph(images, frozen)
        graph = verifiable(content)
        difference = max(difference, _difference(images, graph))
        if difference > _LARGEST_DIFFERENCE:
            raise ValueError(f"the graph for verifiers answers otherwise than {images.graph_name}")
        written += list(_write(output, images, graph, radii))
        if frozen and images.artifact.elliptical:
            written += list(_write_frozen(output, images, content, radii))
    lines = io.StringIO()
    rows = csv.writer(lines, lineterminator="\n")
    rows.writerows((one.onnx, one.file, timeout) for one in written)
    write_whole(output / INSTANCES, lines.getvalue())
    found = Properties(report=digest, difference=difference, properties=written)
    write_whole(output / INDEX, found.model_dump_json(indent=1))
    return found


def box(image: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """The smallest and the largest pixels within a radius, float64 in [0, 1]."""
    exact = image.astype(np.float64)
    return np.maximum(exact - eps, 0), np.minimum(exact + eps, 1)


def vnnlib(image: np.ndarray, eps: float, label: int, num_classes: int, *about: str) -> str:
    """One property as a file.

    Args:
        image: (C, H, W) float32.
        eps: radius.
        label: the class that must stay first.
        num_classes: K.
        about: comments.
    """
    low, high = box(image, eps)
    shape = ",".join(map(str, (1, *image.shape)))
    lines = [
        *(f"; {one}" for one in about),
        "(vnnlib-version <2.0>)",
        "(declare-network f",
        f"    (declare-input X real [{shape}])",
        f"    (declare-output Y real [1,{num_classes}])",
        ")",
    ]
    for place in np.ndindex(image.shape):
        name = f"X[0,{','.join(map(str, place))}]"
        lines.append(f"(assert (>= {name} {_decimal(low.item(place))}))")
        lines.append(f"(assert (<= {name} {_decimal(high.item(place))}))")
    others = (k for k in range(num_classes) if k != label)
    lines.append(f"(assert (or {' '.join(f'(>= Y[0,{k}] Y[0,{label}])' for k in others)}))")
    return "\n".join(lines) + "\n"


def _decimal(value: float) -> str:
    """The shortest decimal that reads as the same float64; the format knows no exponent."""
    return np.format_float_positional(value, trim="0")


def _radii(report: Report) -> list[str]:
    """The radii of the attacks of a report in l-infinity, ascending."""
    known = {
        attack.eps_value: attack.eps
        for model in report.summary.models
        for attack in model.attacks
        if attack.kind == "Linf"
    }
    return [known[value] for value in sorted(known)]


def _graph(images: Images, frozen: bool) -> bytes:
    """The served graph; where m shall be frozen and an old one does not name it, written anew."""
    artifact = images.artifact
    if artifact.manifest.precision != "fp32":
        raise ValueError(
            f"{artifact.name} is served in {artifact.manifest.precision}: properties are written "
            "for graphs in fp32"
        )
    content = artifact.graph()
    if not frozen or not artifact.elliptical or metric_names(ModelProto.FromString(content)):
        return content
    import torch

    from export.onnx import to_onnx
    from runtimes.torch_model import load_torch_model

    example = torch.zeros(2, *images.pixels.shape[1:])
    return to_onnx(load_torch_model(artifact), example, {})


def _difference(images: Images, graph: bytes) -> float:
    """Largest relative difference of logits between a graph for verifiers and the served one."""
    contents = images.artifact.graph(), graph
    sessions = [open_session(content, threads=1) for content in contents]
    found = 0.0
    for image in images.pixels:
        feed = {"images": image[None]}
        one, other = (np.asarray(each.run(["logits"], feed)[0]) for each in sessions)
        found = max(found, float(np.abs(one - other).max() / np.abs(one).max()))
    return found


def _write(
    output: Path, images: Images, graph: bytes, radii: dict[str, float]
) -> Iterator[Property]:
    """One graph, and the properties of all images."""
    onnx = f"onnx/{images.graph_name}.onnx"
    write_whole(output / onnx, graph)
    for sample in range(len(images.pixels)):
        yield from _write_one(output, images, sample, radii, (onnx, sha256(graph)), "computed")


def _write_frozen(
    output: Path, images: Images, content: bytes, radii: dict[str, float]
) -> Iterator[Property]:
    """A graph and the properties of each image."""
    for sample, image in enumerate(images.pixels):
        graph = verifiable(content, metric_of(content, image))
        onnx = f"onnx/{images.graph_name}-{sample:06d}-frozen.onnx"
        write_whole(output / onnx, graph)
        yield from _write_one(output, images, sample, radii, (onnx, sha256(graph)), "frozen")


def _write_one(
    output: Path,
    images: Images,
    sample: int,
    radii: dict[str, float],
    graph: tuple[str, str],
    metric: Metric,
) -> Iterator[Property]:
    """The properties of one image."""
    onnx, digest = graph
    label, classes = int(images.labels[sample]), len(images.artifact.labels)
    for text, value in radii.items():
        ending = "-frozen" if metric == "frozen" else ""
        file = f"vnnlib/{images.graph_name}-{sample:06d}-{text.replace('/', '_')}{ending}.vnnlib"
        about = (
            f"Input {sample} of the report, label {label}, l-infinity within {text}.",
            f"Model {images.graph_name}, sha256 of its manifest {images.artifact.digest}.",
            _FROZEN if metric == "frozen" else _COMPUTED,
        )
        content = vnnlib(images.pixels[sample], value, label, classes, *about).encode()
        write_whole(output / file, content)
        yield Property(
            file=file,
            onnx=onnx,
            digests=(sha256(content), digest),
            model=images.artifact.digest,
            sample=sample,
            label=label,
            eps=text,
            eps_value=value,
            metric=metric,
        )
