"""An attack on a module with every pass through it counted; blocks that are done can be kept."""

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from core.files import write_whole
from data.images import ImageSpec
from robustness.attacks.base import Attack, Batch, Search
from robustness.target import ImageTarget
from runtimes.base import Inputs

BLOCK = 50  # images that are attacked together, and kept together
GRADIENT = 3  # forward passes that a gradient costs


@dataclass(slots=True)
class Passes:
    """What was asked of a model, counted in inputs.

    Attributes:
        gradients: forward passes that a backward pass follows.
        answers: forward passes without one.
    """

    gradients: int = 0
    answers: int = 0

    @property
    def cost(self) -> int:
        """Forward passes, a gradient counting three."""
        return GRADIENT * self.gradients + self.answers


class Counted(nn.Module):
    """A model whose passes are counted."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.passes = inner, Passes()

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) from pixels (B, C, H, W)."""
        if images.requires_grad and torch.is_grad_enabled():
            self.passes.gradients += len(images)
        else:
            self.passes.answers += len(images)
        return self.inner(images)


class ModuleRuntime:
    """Serves a module as it is."""

    name, precision = "module", "fp32"

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def predict(self, inputs: Inputs) -> np.ndarray:
        """Logits (B, K) float32."""
        with torch.no_grad():
            return self._module(torch.from_numpy(np.asarray(inputs))).numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attacked:
    """What came of an attack.

    Attributes:
        right: (N,) bool, which images the model gets right unchanged.
        held: (N,) bool, which of them it gets right under attack, too.
        made: (N, C, H, W) float32, of each image the one that fooled the model, or the last.
        passes: what it took, the scoring of each part included.
    """

    right: np.ndarray
    held: np.ndarray
    made: np.ndarray
    passes: Passes


def attacked(
    model: nn.Module, batch: Batch, attack: Attack, *, kept: Path | None = None
) -> Attacked:
    """Run the parts of an attack one after another, each on what the ones before left.

    Gradients of elliptical attention flow through m.

    Args:
        model: logits (B, K) from pixels, in evaluation mode.
        batch: images with their labels.
        attack: at one budget.
        kept: a folder for finished blocks, which a later call reads; one for each model.
    """
    blocks = [
        _once(kept, model, batch.take(np.arange(start, stop)), attack)
        for start, stop in _blocks(len(batch.inputs))
    ]
    return Attacked(
        right=np.concatenate([block.right for block in blocks]),
        held=np.concatenate([block.held for block in blocks]),
        made=np.concatenate([block.made for block in blocks]),
        passes=total([block.passes for block in blocks]),
    )


def total(passes: Sequence[Passes]) -> Passes:
    """The sum of several."""
    return Passes(sum(each.gradients for each in passes), sum(each.answers for each in passes))


def right(model: nn.Module, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Which images (N, C, H, W) a model gets right, (N,) bool."""
    with torch.no_grad():
        parts = [model(part) for part in torch.from_numpy(images).split(100)]
    return torch.cat(parts).argmax(1).numpy() == labels


def _blocks(count: int) -> list[tuple[int, int]]:
    return [(start, min(start + BLOCK, count)) for start in range(0, count, BLOCK)]


def _once(kept: Path | None, model: nn.Module, batch: Batch, attack: Attack) -> Attacked:
    if kept is None:
        return _attacked(model, batch, attack)
    what = json.dumps(attack.model_dump(mode="json"), sort_keys=True).encode()
    digest = hashlib.sha256(what + batch.images.tobytes() + batch.labels.tobytes())
    path = kept / f"{attack.name}-{digest.hexdigest()[:16]}.npz"
    if path.exists():
        with np.load(path) as found:
            counts = Passes(*map(int, found["passes"]))
            arrays = {name: found[name] for name in ("right", "held", "made")}
            return Attacked(**arrays, passes=counts)
    done, file = _attacked(model, batch, attack), io.BytesIO()
    passes = np.array([done.passes.gradients, done.passes.answers])
    np.savez_compressed(file, right=done.right, held=done.held, made=done.made, passes=passes)
    write_whole(path, file.getvalue())
    return done


def _attacked(model: nn.Module, batch: Batch, attack: Attack) -> Attacked:
    counted, [budget] = Counted(model).eval(), attack.budgets()
    target = _target(counted, batch)
    unchanged = target.predict(batch.images).argmax(1) == batch.labels
    held, made = unchanged.copy(), batch.images.copy()
    for part in attack.parts(len(target.labels)):
        rows = np.flatnonzero(held)
        if not len(rows):
            break
        seeds = part.seeds(0, budget, batch.images[rows])
        variant = "full" if target.elliptical else "plain"
        found = part.run(target, batch.take(rows), budget, Search(seeds=seeds, variant=variant))
        part.size(batch.take(rows), found, budget)  # raises where a change is too large
        made[rows] = found.images
        held[rows] = target.predict(found.images).argmax(1) == batch.labels[rows]
    return Attacked(right=unchanged, held=held, made=made, passes=counted.passes)


def _target(model: nn.Module, batch: Batch) -> ImageTarget:
    with torch.no_grad():
        count = model(torch.from_numpy(batch.images[:1])).shape[1]
    _, channels, height, width = batch.images.shape
    return ImageTarget(
        name="model",
        version="1",
        digest="",
        labels=[str(index) for index in range(count)],
        image_spec=ImageSpec(channels=channels, height=height, width=width),
        runtime=ModuleRuntime(model),
        torch_model=model,
    )
