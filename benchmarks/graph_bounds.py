"""What do bounds that are sent through a graph prove, and does anything beat them?

A small network of dense layers and one of convolutions are trained on Fashion-MNIST for an epoch,
imported as ONNX, and proved on images of the test set, by intervals and by affine arithmetic, and
attacked with PGD in the same boxes. The shipped models, small transformers, follow: they show
how little such bounds prove of products, softmax and normalization.
"""

import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from benchmarks.support.rows import Row, figure
from core.stats import wilson
from data.images import ImageSpec
from data.sources import ImageSet, load_inputs, open_images
from export.importers.input_file import read_input
from export.importers.sources import open_source
from export.importers.write import import_graph
from export.verifiable import unrolled
from robustness.certificates.propagation import Propagation
from robustness.evaluation import evaluate
from robustness.parsing import parse_eps
from robustness.spec import EvaluationSpec
from robustness.target import ImageTarget, torch_threads
from robustness.text_target import open_model
from runtimes.artifact import Artifact, open_artifact

_EPS = ("0.1/255", "0.5/255", "1/255", "2/255")
_SHIPPED = ("fashion-dot", "fashion-elliptical", "fashion-elliptical-adv")
_SOURCE = "fashion-mnist"
_TINIEST = "0.0001/255"
_GIVEN = "size: [28, 28]\nchannels: grey\nrange: [0, 1]\n"


def run(images: int = 100, affine: int = 2) -> Iterable[Row]:
    """Prove images of small networks, then of the shipped models.

    Args:
        images: of each model.
        affine: images of each shipped model that affine arithmetic is tried on.
    """
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        for name, network in (("dense", _dense()), ("convolutions", _convolutions())):
            _train(network)
            yield from _small(name, network, Path(folder) / name, images)
    for name in _SHIPPED:
        yield from _transformer(open_artifact(Path("artifacts") / name), images, affine)


def _dense() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(),
        nn.Linear(100, 10),
    )  # fmt: skip


def _convolutions() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(784, 10),
    )  # fmt: skip


def _train(network: nn.Sequential) -> None:
    """One epoch of Adam on 20,000 images."""
    inputs, labels = map(torch.from_numpy, _images("train", 20_000))
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for rows in torch.randperm(len(inputs)).split(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(inputs[rows]), labels[rows]).backward()
        optimizer.step()
    network.requires_grad_(False)


def _images(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Random images (N, 1, 28, 28) of a split, with labels (N,)."""
    part = _part(split, count)
    spec = ImageSpec(channels=1, height=28, width=28)
    return load_inputs(part, spec), np.asarray(part.labels, np.int64)


def _part(split: str, count: int) -> ImageSet:
    source = open_images(_SOURCE, split=split)
    chosen = np.random.default_rng(0).choice(len(source), count, replace=False)
    return source.take(sorted(chosen.tolist()))


def _small(name: str, network: nn.Sequential, folder: Path, count: int) -> Iterator[Row]:
    """What is proved of a network, and what PGD finds in the same boxes."""
    target = _imported(network, name, folder)
    attacks = [{"name": "graph-bounds", "eps": list(_EPS)}, {"name": "pgd", "eps": list(_EPS)}]
    spec = EvaluationSpec.model_validate({"attacks": attacks})
    part = _part("test", count)
    report = evaluate(spec, [target], part, folder / "report")
    [model] = report.summary.models
    about = f"{name}, {count} images"
    yield figure(f"{about}: clean accuracy", model.clean.top1, "share", better="higher",
                 samples=count, spread=model.clean.ci)  # fmt: skip
    for one in model.brackets:
        for what, found in (
            ("proved accuracy", one.proved_accuracy),
            ("robust accuracy under PGD", one.robust_accuracy),
        ):
            case = f"{about}, within {one.eps}: {what}"
            yield figure(case, found.top1, "share", better="higher", samples=count, spread=found.ci)
        share = one.methods.get("intervals", 0)
        yield figure(f"{about}, within {one.eps}: proved by intervals alone", share, "images",
                     better="higher", samples=count)  # fmt: skip
    beaten = sum(len(one.contradictions) for one in model.brackets)
    yield figure(f"{about}: proofs that PGD contradicts", beaten, "images", target=0, samples=count)
    rounding = max(one.rounding for one in model.brackets)
    yield figure(f"{about}: what rounding may take", rounding, "of a logit", samples=count)


def _imported(network: nn.Sequential, name: str, folder: Path) -> ImageTarget:
    """The network as an imported graph, with the trained one to attack."""
    folder.mkdir()
    (folder / "input.yaml").write_text(_GIVEN)
    (folder / "graph.onnx").write_bytes(_written(network))
    artifact = import_graph(
        open_source(str(folder / "graph.onnx")),
        folder / "artifact",
        name=name,
        labels=open_images(_SOURCE).label_names or [],
        given=read_input(str(folder / "input.yaml")),
        differentiable=False,
    )
    target = open_model(artifact, threads=1)
    if not isinstance(target, ImageTarget):
        raise TypeError("an image classifier was imported")
    return replace(target, torch_model=network.eval())


def _written(network: nn.Sequential) -> bytes:
    """Layers one by one as ONNX."""
    nodes, weights = [], []
    last = "images"
    for i, layer in enumerate(network):
        name = "logits" if i == len(network) - 1 else f"layer_{i}"
        given = [last]
        for kind, tensor in layer.named_parameters():
            weights.append(numpy_helper.from_array(tensor.detach().numpy(), f"{name}.{kind}"))
            given.append(f"{name}.{kind}")
        about: dict[str, Any] = {"transB": 1} if isinstance(layer, nn.Linear) else {}
        if isinstance(layer, nn.Conv2d):
            about = {"pads": [1] * 4, "strides": [2, 2]}
        kind = {nn.Linear: "Gemm", nn.Conv2d: "Conv", nn.ReLU: "Relu", nn.Flatten: "Flatten"}
        nodes.append(helper.make_node(kind[type(layer)], given, [name], **about))
        last = name
    ends = (("images", ["N", 1, 28, 28]), ("logits", ["N", 10]))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in ends]
    graph = helper.make_graph(nodes, "network", values[:1], values[1:], weights)
    opset = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=opset, ir_version=9).SerializeToString()


def _transformer(artifact: Artifact, count: int, affine: int) -> Iterator[Row]:
    """How many images are proved within a radius far below any rounding to 8 bit."""
    known = Propagation(unrolled(artifact.graph()))
    inputs, labels = _images("test", count)
    radius = parse_eps(_TINIEST)
    for how, slopes, some in (("intervals", False, count), ("affine arithmetic", True, affine)):
        held = []
        for image, label in zip(inputs[:some], labels, strict=False):
            exact = torch.from_numpy(image.astype(np.float64))[None]
            box = (exact - radius).clamp(min=0), (exact + radius).clamp(max=1)
            left, lost = known.margin(*box, int(label), slopes=slopes)
            held.append(left > lost)
        about = f"{artifact.name}, {some} images"
        proved = sum(held)
        yield figure(f"{about}, within {_TINIEST}: proved by {how}", proved / some, "share",
                     better="higher", samples=some, spread=wilson(proved, some))  # fmt: skip
