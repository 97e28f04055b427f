"""Evaluate a model on a split: the figures of its task, clean or attacked."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from core.progress import Bar
from training.distributed import Processes
from training.draws import Draws, source
from training.objective import attack
from training.recipe import AdversarialRecipe
from training.samples import Samples, to_model
from training.tasks import Task

ATTACKED = 1000
"""Images of a split that an adversarial recipe attacks."""
_TOKENS = 16_000  # of one batch, at most


def evaluate(
    model: nn.Module,
    samples: Samples,
    task: Task,
    processes: Processes,
    *,
    adversarial: AdversarialRecipe | None = None,
    count: int | None = None,
    progress: str | None = None,
) -> dict[str, float]:
    """Measure a model in eval mode, on several processes together.

    Args:
        model: of the task; it is left in eval mode.
        samples: the split.
        task: says what is measured.
        processes: among which the samples are shared.
        adversarial: an attack (its seed is fixed) on the first 1,000 images; None does none.
        count: of the first samples; None, or more than there are, takes all.
        progress: what to call this on a progress bar; None shows none.

    Returns:
        The figures of the task, and `attacked_accuracy` where there is an attack.
    """

    def figures(count: int, attack_: AdversarialRecipe | None) -> dict[str, float]:
        """Those of the first `count` samples."""
        own = np.arange(count)[processes.rank :: processes.size]
        answers = _answers(model, samples, own, processes.device, attack_, progress)
        sums = sum((task.sums(logits, targets) for _, logits, targets in answers), task.zeros)
        return task.figures(processes.sum(sums))

    total = len(samples) if count is None else min(count, len(samples))
    found = figures(total, None)
    if adversarial is not None:
        attacked = figures(min(ATTACKED, total), adversarial)
        found["attacked_accuracy"] = attacked["accuracy"]
    return found


def predict(
    model: nn.Module, samples: Samples, device: torch.device, *, progress: str | None = None
) -> np.ndarray:
    """The class that a model gives each sample, (N,) int64; see `evaluate`."""
    found = np.empty(len(samples), np.int64)
    for own, logits, _ in _answers(model, samples, np.arange(len(found)), device, None, progress):
        found[own] = logits.argmax(1).cpu().numpy()
    return found


def _answers(
    model: nn.Module,
    samples: Samples,
    indices: np.ndarray,
    device: torch.device,
    adversarial: AdversarialRecipe | None,
    progress: str | None,
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Of samples, batch by batch: their indices, logits and targets."""
    model.eval()
    options = {"unit": "sample", "leave": False, "disable": progress is None}
    with Bar(desc=progress, total=len(indices), **options) as bar:
        for own in _batches(indices, samples.lengths, samples.most):
            targets = samples.targets(own).to(device)
            inputs = to_model(samples.batch(own), device)
            if adversarial is not None:
                draws = Draws(source(0, "attack", int(own[0])), len(own))
                noise = draws.uniform(*inputs[0].shape[1:]).to(device)
                inputs = (attack(model, inputs[0], targets, adversarial, noise),)
            with torch.inference_mode():
                logits = model(*inputs)
            yield own, logits, targets
            bar.update(len(own))


def _batches(indices: np.ndarray, lengths: np.ndarray | None, most: int) -> Iterator[np.ndarray]:
    """Batches of at most so many samples; sequences by length, so that little is padding."""
    if lengths is None:
        yield from (indices[start : start + most] for start in range(0, len(indices), most))
        return
    ordered = indices[np.argsort(lengths[indices], kind="stable")]
    while len(ordered):
        size = min(most, len(ordered))
        while size > 1 and size * lengths[ordered[size - 1]] > _TOKENS:
            size = size // 2
        yield ordered[:size]
        ordered = ordered[size:]
