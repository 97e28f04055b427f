"""What every step of an evaluation needs: the model, and one range of its inputs."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from core.environment import code_digest, versions
from robustness import store as shards
from robustness.attacks.base import Attack, Batch, Budget, Variant
from robustness.progress import Meter
from robustness.scoring import CleanResult, ShardResult
from robustness.spec import Cell, EvaluationSpec
from robustness.target import Target

_LIBRARIES = ("torch", "torchattacks", "numpy", "scipy", "onnxruntime")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationContext:
    """One model's part of an evaluation.

    Attributes:
        spec: what was asked for.
        target: the model.
        folder: where shards go.
        meter: told of every model evaluation.
        threads: of torch and of the runtime; results depend on them to the last bits.
    """

    spec: EvaluationSpec
    target: Target
    folder: Path
    meter: Meter
    threads: int

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.target.labels)

    @property
    def in_full(self) -> bool:
        """Whether fooled inputs are attacked to the end."""
        return self.spec.in_full(self.num_classes)

    def say(self, stage: str) -> None:
        """Name what is running."""
        self.meter.stage = f"{self.target.name}: {stage}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One range of inputs, scored as they are and ready to be attacked.

    Attributes:
        start: index of the first input.
        inputs: (n, C, H, W) float32, or n texts.
        digest: sha256 of the inputs.
        clean: the result on them.
    """

    start: int
    inputs: np.ndarray | list[str]
    digest: str
    clean: CleanResult

    @property
    def images(self) -> np.ndarray:
        """The inputs of an image model."""
        if not isinstance(self.inputs, np.ndarray):
            raise TypeError("texts are not images")
        return self.inputs

    @property
    def texts(self) -> list[str]:
        """The inputs of a text model."""
        if isinstance(self.inputs, np.ndarray):
            raise TypeError("images are not texts")
        return self.inputs

    @property
    def batch(self) -> Batch:
        """The inputs with their labels."""
        return Batch(inputs=self.inputs, labels=self.clean.label)


def inputs_digest(inputs: np.ndarray | Sequence[str]) -> str:
    """sha256 of a range of inputs."""
    if isinstance(inputs, np.ndarray):
        return shards.content_digest(inputs)
    whole = "\0".join(inputs).encode("utf-8", "surrogatepass")
    return hashlib.sha256(f"{len(inputs)}:".encode() + whole).hexdigest()


def identity(
    context: EvaluationContext, block: Block, attack: Attack, budget: Budget
) -> dict[str, Any]:
    """Everything that the bytes of a shard or a result depend on, as JSON values."""
    return surroundings(context) | {
        "attack": attack.model_dump(mode="json"),
        "in_full": context.in_full,
        "inputs": block.digest,
        "labels": block.clean.label.tolist(),
        "point": budget.text,
        "seed": context.spec.seed,
        "start": block.start,
    }


def surroundings(context: EvaluationContext) -> dict[str, Any]:
    """What the bytes of everything depend on: the model, and what it and the attacks run on."""
    runtime = context.target.runtime
    return {
        "code": code_digest(),
        "model": context.target.digest,
        "runtime": [runtime.name, runtime.precision],
        "threads": context.threads,
        "versions": versions(_LIBRARIES),
    }


def read_result(
    context: EvaluationContext, kind: type[ShardResult], block: Block, cell: Cell
) -> ShardResult | None:
    """The stored result on a cell; None if it has to be made."""
    path = shards.result_path(context.folder, context.target.digest, cell, block.start)
    stored = shards.read(path, identity(context, block, cell.attack, cell.budget))
    if stored is None or set(stored) != {field.name for field in fields(kind)}:
        return None
    return kind(**stored)


def write_result(context: EvaluationContext, result: ShardResult, block: Block, cell: Cell) -> None:
    """Store the result on a cell."""
    path = shards.result_path(context.folder, context.target.digest, cell, block.start)
    tensors = {name: np.asarray(array) for name, array in asdict(result).items()}
    shards.write(path, tensors, identity(context, block, cell.attack, cell.budget))


def variants_of(target: Target, part: Attack) -> tuple[Variant, ...]:
    """The ways of taking gradients in which a part of an attack runs."""
    return target.variants if part.info.access == "gradient" else ("plain",)
