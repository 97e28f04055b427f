"""The nearest adversarial inputs, by FAB: one run tells the accuracy at every radius."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robustness.attacks.batch import check_batch, ranked, target_ranks
from robustness.attacks.kernels import Observed, SortlessFAB, Watch
from robustness.catalog import Norm, Variant
from robustness.progress import Meter
from robustness.proposals import Aim, Proposer
from robustness.target import device_of, gradient_path, undisturbed


def minimal(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    norm: Norm,
    steps: int,
    until: float,
    seeds: Sequence[int],
    variant: Variant = "plain",
    leave: bool = True,
    proposer: Proposer | None = None,
    meter: Meter | None = None,
) -> tuple[Tensor, Tensor]:
    """Look for the nearest misclassified images, with FAB towards each of the likeliest classes.

    One run serves every radius: an image is robust at eps where its distance is larger.

    Args:
        model: logits from pixels; attacked in evaluation mode.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64 class indices.
        norm: of the distance.
        steps: of each of up to nine targets.
        until: an image needs no nearer input than that, and leaves: at once where `leave`, else
            when the run towards the current target ends.
        seeds: one an image, as for every attack; FAB without restarts draws nothing from them.
        variant: how gradients treat m of elliptical attention.
        leave: see `until`.
        proposer: as for `perturb`; then nothing further away than `until` is kept.
        meter: told of every model evaluation; its `Cancelled` ends the attack within one step.

    Returns:
        The nearest misclassified images (N, C, H, W), the clean one where none was found, and their
        distances (N,): 0 where the clean image is misclassified, inf where nothing was found.

    Raises:
        ValueError: images are not float32 in [0, 1], or labels not int64.

    Source: Croce & Hein 2020, "Minimally distorted adversarial examples with a fast adaptive
    boundary attack".
    """
    check_batch(images, labels, seeds)
    device = device_of(model)
    nearest, truth = images.detach().to(device).clone(), labels.to(device)
    distance = torch.full(truth.shape, torch.inf, device=device)
    if len(images) == 0:
        return nearest, distance
    observed = Observed(model, meter, proposer)
    with undisturbed(model), gradient_path(model, variant), torch.no_grad():
        logits = observed.evaluate(nearest)
        distance[logits.max(1)[1] != truth] = 0.0
        kernel = SortlessFAB(observed, norm=norm, steps=steps, alpha_max=0.1, eta=1.05, beta=0.9,
                             multi_targeted=True)  # fmt: skip
        for target in target_ranks(logits):
            rows = (distance > until).nonzero().flatten()
            if len(rows) == 0:
                break
            kernel.target_class = target
            aim = Aim(loss="margin", labels=truth[rows], targets=ranked(logits[rows], target))
            watch = Watch(
                images.to(device)[rows], truth[rows], norm=norm,
                until=until if leave else None, logits=logits[rows], aim=aim,
            )  # fmt: skip
            observed.run(watch, kernel.attack_single_run_targeted, watch.images, watch.labels)
            nearer = watch.distance < distance[rows]
            nearest[rows[nearer]] = watch.nearest[nearer]
            distance[rows[nearer]] = watch.distance[nearer]
    return nearest.to(images.device), distance.to(images.device)
