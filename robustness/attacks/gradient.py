"""FGSM and PGD: the kernels of torchattacks, without their side effects.

The kernels are bit-identical to the reference implementations under the settings used here. Their
defaults and their handling of state are not used: PGD's default step (2/255) once left 91 % robust
where 13.5 % was true, and the base class changes modules' modes and draws from the global
generator.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torchattacks import FGSM, PGD

from robustness.progress import Meter
from robustness.spec import AttackSpec, Variant
from robustness.target import device_of, gradient_path, undisturbed


class _Observed(nn.Module):
    """Shows a kernel the twin, and the meter every evaluation.

    The twin is held outside the list of submodules: the kernel's base class switches the modes of
    the module it is given, and never finds the twin. The placeholder is how it finds the device.
    """

    def __init__(self, twin: nn.Module, meter: Meter | None) -> None:
        super().__init__()
        self.placeholder = nn.Parameter(torch.empty(0, device=device_of(twin)), requires_grad=False)
        self.outside = (twin, meter)

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) for images (B, C, H, W)."""
        twin, meter = self.outside
        if meter is not None:
            meter.before()
        logits = twin(images)
        if meter is not None:
            meter.after(len(images))
        return logits


def perturb(
    twin: nn.Module,
    images: Tensor,
    labels: Tensor,
    *,
    attack: AttackSpec,
    eps: float,
    seed: int,
    variant: Variant = "plain",
    meter: Meter | None = None,
) -> Tensor:
    """Look for misclassified images within an l-infinity ball, from the model's gradients.

    FGSM takes one step of length eps; PGD starts at a random point of the ball, takes `steps`
    signed steps of length alpha (default .15 eps) and returns the last iterate. Both raise the
    cross-entropy of the labels and clip to [0, 1]. Images already misclassified are moved too.
    No global generator, gradient, module's mode or `requires_grad` is changed, also after an error.

    Args:
        twin: the model, logits from pixels; attacked in evaluation mode.
        images: (B, C, H, W) float32 in [0, 1].
        labels: (B,) int64 class indices.
        attack: which attack, with its steps and step size.
        eps: l-infinity radius in pixel units, e.g. 8 / 255.
        seed: of the random start.
        variant: how gradients treat m of elliptical attention.
        meter: told of every model evaluation; its `Cancelled` ends the attack within one step.

    Returns:
        The adversarial images (B, C, H, W). Where a gradient is zero or not a number, the step is
        zero: `robustness.doubts` looks for that.

    Raises:
        ValueError: images are not float32 in [0, 1], or labels not int64.

    Source: Goodfellow et al. 2015, eq. in section 4; Madry et al. 2018, eq. 2.2.
    """
    _check(images, labels)
    observed = _Observed(twin, meter)
    kernel = (
        FGSM(observed, eps=eps)
        if attack.name == "fgsm"
        else PGD(
            observed,
            eps=eps,
            alpha=attack.step_size(eps),
            steps=attack.num_steps,
            random_start=True,
        )
    )
    with undisturbed(twin), gradient_path(twin, variant), own_draws(seed, device_of(twin)):
        return kernel(images, labels).detach().to(images.device)


@contextmanager
def own_draws(seed: int, device: torch.device) -> Iterator[None]:
    """Give the block's random draws on a device their own seed; global generators are restored."""
    on_gpu = device.type == "cuda"
    with torch.random.fork_rng([device] if on_gpu else []):
        if on_gpu:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)
        yield


def _check(images: Tensor, labels: Tensor) -> None:
    # The kernels clamp silently, which moves a pixel outside [0, 1] by more than eps.
    if images.dtype != torch.float32 or images.ndim != 4:
        raise ValueError(
            f"images must be (B, C, H, W) float32, got {tuple(images.shape)} {images.dtype}"
        )
    if not bool(((images >= 0) & (images <= 1)).all()):
        raise ValueError("images must lie in [0, 1]")
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise ValueError(
            f"labels must be ({len(images)},) int64, got {tuple(labels.shape)} {labels.dtype}"
        )
