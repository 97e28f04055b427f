"""Bounds sent through graphs: nothing drawn from a box lies outside of them."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from data.images import ImageSpec
from export.verifiable import unrolled
from robustness.attacks.base import Batch, Search
from robustness.certificates.graph_bounds import GraphBounds
from robustness.certificates.propagation import Propagation
from robustness.certificates.rules import RULES
from robustness.kinds import NotPossible
from robustness.results import ProofResult
from robustness.target import ImageTarget
from runtimes.onnx import open_session

SHAPE = (1, 3, 4, 4)
make = helper.make_node


def graph_of(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], shape: tuple[int, ...] = SHAPE
) -> bytes:
    """A graph from images to logits (1, K), whatever K is."""
    values = [
        helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", *shape[1:]]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", None]),
    ]
    graph = helper.make_graph(
        nodes, "made", values[:1], values[1:],
        [numpy_helper.from_array(one, name) for name, one in weights.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 20)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9).SerializeToString()


def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)

    def some(*shape: int) -> np.ndarray:
        """Weights of a shape."""
        return draw.standard_normal(shape).astype(np.float32)

    return {
        "kernel": some(3, 3, 3, 3), "bias": some(3), "matrix": some(4, 5), "gemm": some(6, 48),
        "six": some(6), "four": some(4), "column": some(3, 1, 1), "positive": np.abs(some(3)) + 1,
        "three": some(3), "one": np.array([1], np.int64), "last": np.array([-1], np.int64),
        "flat": np.array([0, -1], np.int64), "rows": np.array([0, 4, 8], np.int64),
        "start": np.array([3], np.int64), "end": np.array([-9], np.int64),
        "picks": np.array([3, 0], np.int64), "parts": np.array([1, 3], np.int64),
        "low": np.array(0.3, np.float32), "high": np.array(0.7, np.float32),
        "half": np.array(0.5, np.float32), "const": some(1, 3, 4, 4),
    }  # fmt: skip


CENTERED = make("Sub", ["images", "half"], ["x"])
CASES: dict[str, list[onnx.NodeProto]] = {
    "Conv": [make("Conv", ["images", "kernel", "bias"], ["y"], pads=[1, 0, 1, 2], strides=[2, 1])],
    "MatMul": [make("MatMul", ["images", "matrix"], ["y"])],
    "MatMul of two": [
        CENTERED,
        make("Transpose", ["x"], ["t"], perm=[0, 1, 3, 2]),
        make("MatMul", ["x", "t"], ["y"]),
    ],
    "MatMul from the left": [
        make("Transpose", ["matrix"], ["t"]),
        make("MatMul", ["t", "images"], ["y"]),
    ],
    "Gemm": [
        make("Flatten", ["images"], ["f"]),
        make("Gemm", ["f", "gemm", "six"], ["y"], transB=1, alpha=0.5),
    ],
    "BatchNormalization": [
        make("BatchNormalization", ["images", "three", "three", "three", "positive"], ["y"])
    ],
    "Mul of two": [CENTERED, make("Mul", ["x", "images"], ["y"])],
    "Mul": [make("Mul", ["column", "images"], ["y"])],
    "Div": [
        make("Add", ["images", "half"], ["d"]),
        make("Sub", ["images", "low"], ["n"]),
        make("Div", ["n", "d"], ["y"]),
    ],
    "Sub from": [make("Sub", ["column", "images"], ["y"])],
    "Softmax": [CENTERED, make("Mul", ["x", "column"], ["s"]), make("Softmax", ["s"], ["y"])],
    "LayerNormalization": [make("LayerNormalization", ["images", "four", "four"], ["y"])],
    "MaxPool": [make("MaxPool", ["images"], ["y"], kernel_shape=[2, 2], strides=[2, 1])],
    "AveragePool": [make("AveragePool", ["images"], ["y"], kernel_shape=[3, 2], strides=[1, 2])],
    "GlobalAveragePool": [make("GlobalAveragePool", ["images"], ["y"])],
    "ReduceMax": [make("ReduceMax", ["images", "last"], ["y"])],
    "ReduceMean": [make("ReduceMean", ["images", "one"], ["y"], keepdims=0)],
    "ReduceSum": [make("ReduceSum", ["images", "one"], ["y"])],
    "Clip": [make("Clip", ["images", "low", "high"], ["y"])],
    "Slice": [make("Slice", ["images", "start", "end", "last", "last"], ["y"])],
    "Gather": [make("Gather", ["images", "picks"], ["y"], axis=3)],
    "Concat": [make("Concat", ["images", "const"], ["y"], axis=1)],
    "Split": [
        make("Split", ["images", "parts"], ["s", "t"], axis=2),
        make("Concat", ["t", "s"], ["y"], axis=2),
    ],
    "Unsqueeze": [
        make("Unsqueeze", ["images", "one"], ["u"]),
        make("Squeeze", ["u", "one"], ["y"]),
    ],
    "LeakyRelu": [CENTERED, make("LeakyRelu", ["x"], ["y"], alpha=0.2)],
} | {
    kind: [CENTERED, make(kind, ["x"], ["y"])]
    for kind in ("Abs", "Gelu", "Identity", "Neg", "Relu", "Sigmoid", "Tanh")
}


def box_around(image: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Ends that float32 knows."""
    ends = (image - eps).clamp(0, 1), (image + eps).clamp(0, 1)
    return ends[0].float().double(), ends[1].float().double()


def drawn(low: Tensor, high: Tensor, count: int) -> np.ndarray:
    """Images of a box, half of them at its corners."""
    draw = np.random.default_rng(0).random((count, *low.shape[1:]))
    draw[::2] = draw[::2].round()
    made = (low + (high - low) * torch.from_numpy(draw)).numpy().astype(np.float32)
    return np.clip(made, low.numpy(), high.numpy()).astype(np.float32)


@pytest.mark.parametrize("case", CASES)
def test_nothing_in_a_box_lies_outside_of_the_bounds_of_an_operator(case: str) -> None:
    nodes = [*CASES[case], make("Flatten", ["y"], ["logits"])]
    content = graph_of(nodes, weights())
    known, session = Propagation(unrolled(content)), open_session(content, threads=1)
    image = torch.from_numpy(np.random.default_rng(2).random(SHAPE))
    assert known.refusal is None
    for eps in (1e-6, 0.01, 0.2):
        low, high = box_around(image, eps)
        images = drawn(low, high, 100)[:, None]
        logits = np.concatenate(
            [np.asarray(session.run(["logits"], {"images": one})[0]) for one in images]
        )
        for slopes in (False, True):
            least, most = (each.numpy() for each in known.bounds(low, high, slopes=slopes).bounds)
            assert np.all(logits >= least) and np.all(logits <= most)
            # Corners of boxes of so few pixels come close: the bounds are no idle ones.
            assert eps > 0.1 or (most - least).max() <= 6 * np.ptp(logits, axis=0).max() + 1e-4
            assert eps > 0.1 or known.bounds(low, high, slopes=slopes).rounding.max() < 1e-4


def test_every_rule_is_tried() -> None:
    tried = {node.op_type for nodes in CASES.values() for node in nodes} | {"Reshape", "Flatten"}
    assert tried >= RULES.keys()


def convnet(scale: float = 0.3) -> bytes:
    """A small network of convolutions, normalization, pooling and ReLU, for three classes."""
    draw = np.random.default_rng(4)
    given = {
        "k": draw.standard_normal((4, 3, 3, 3)) * scale, "b": draw.standard_normal(4) * scale,
        "w": draw.standard_normal((3, 16)) * scale, "c": draw.standard_normal(3) * scale,
    }  # fmt: skip
    nodes = [
        make("Conv", ["images", "k", "b"], ["x"], pads=[1, 1, 1, 1]), make("Relu", ["x"], ["y"]),
        make("MaxPool", ["y"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        make("Flatten", ["p"], ["f"]), make("Gemm", ["f", "w", "c"], ["logits"], transB=1),
    ]  # fmt: skip
    return graph_of(nodes, {name: one.astype(np.float32) for name, one in given.items()})


class Served:
    """A graph as a runtime."""

    name, precision = "made", "fp32"

    def __init__(self, content: bytes) -> None:
        self._session = open_session(content, threads=1)

    def predict(self, inputs: Any) -> np.ndarray:
        return np.asarray(self._session.run(["logits"], {"images": inputs})[0])


def target_of(content: bytes) -> ImageTarget:
    return ImageTarget(
        name="made",
        version="1",
        digest="0" * 64,
        labels=["a", "b", "c"],
        runtime=Served(content),
        torch_model=None,
        image_spec=ImageSpec(channels=3, height=4, width=4),
        graph=lambda: content,
    )


def test_no_image_of_a_proved_box_is_misclassified() -> None:
    target = target_of(convnet())
    images = np.random.default_rng(3).random((30, *SHAPE[1:]), np.float32)
    labels = target.predict(images).argmax(axis=1)
    proof, proved = GraphBounds(eps=["0.02", "0.05", "0.06"]), []
    for budget in proof.budgets():
        found = ProofResult(
            **proof.prove(target, Batch(inputs=images, labels=labels), budget, Search(seeds=[]))
        )
        proved.append(int(found.holds.sum()))
        for image, label in zip(images[found.holds], labels[found.holds], strict=True):
            exact = torch.from_numpy(image.astype(np.float64))[None]
            made = drawn(*box_around(exact, budget.value), 200)
            assert (target.predict(made).argmax(axis=1) == label).all()
        assert proved[0] == 0 or set(found.method[found.holds]) <= {0, 1}
    assert proved[0] == 30 > proved[1] > proved[2] >= 0


def test_affine_arithmetic_proves_more_than_intervals() -> None:
    known = Propagation(unrolled(convnet()))
    image = torch.from_numpy(np.random.default_rng(3).random(SHAPE))
    box = box_around(image, 0.02)
    narrow, wide = (known.margin(*box, 0, slopes=each)[0] for each in (True, False))
    assert narrow > wide + 0.01


def test_what_has_no_bounds_is_refused() -> None:
    proof = GraphBounds(eps=["0.01"])
    odd = target_of(
        graph_of([make("Sign", ["images"], ["s"]), make("Flatten", ["s"], ["logits"])], {})
    )
    pool = make("MaxPool", ["images"], ["s"], kernel_shape=[2, 2], pads=[1, 1, 0, 0])
    padded = target_of(graph_of([pool, make("Flatten", ["s"], ["logits"])], {}))
    coarse = replace(odd, runtime=Served(convnet()))
    vars(coarse.runtime)["precision"] = "int8"
    for target, message in (
        (odd, "no bounds for Sign"),
        (padded, "MaxPool has bounds without padding"),
        (coarse, "served in int8"),
        (replace(odd, graph=None), "whose graph nobody can see"),
    ):
        with pytest.raises(NotPossible, match=message):
            proof.check(target)
