"""What is attacked: the served model, and its differentiable twin where gradients are needed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from data.images import ImageSpec
from models.attention.elliptical import is_elliptical, metric_gradient
from robustness.catalog import Variant
from robustness.progress import Meter
from robustness.spec import NotPossible
from runtimes.artifact import Artifact
from runtimes.base import Runtime, RuntimeUnavailable
from runtimes.registry import open_runtime
from runtimes.torch_model import load_twin


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One model on trial.

    Attributes:
        name: its name in the report.
        version: its version in the report.
        digest: sha256 of what is judged; for an artifact, that of its manifest.
        labels: names of its K classes.
        image_spec: how images become its inputs.
        runtime: the served model; verdicts are confirmed on it.
        twin: the same function as a differentiable module, or None.
    """

    name: str
    version: str
    digest: str
    labels: list[str]
    image_spec: ImageSpec
    runtime: Runtime
    twin: nn.Module | None

    @property
    def elliptical(self) -> bool:
        """Whether the twin estimates a metric, and so is attacked in two ways."""
        return self.twin is not None and is_elliptical(self.twin)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The ways of taking gradients; the per-sample worst of them is the verdict."""
        return ("stopped", "full") if self.elliptical else ("plain",)

    def require_twin(self) -> nn.Module:
        """The twin.

        Raises:
            NotPossible: there is none, so gradient attacks are impossible.
        """
        if self.twin is None:
            raise NotPossible(
                f"gradient attacks need the differentiable twin, but {self.name!r} has none"
            )
        return self.twin


def open_target(artifact: Artifact, *, threads: int) -> Target:
    """Open the runtime that judges an artifact, and its twin.

    Args:
        artifact: a verified artifact.
        threads: threads of the runtime.
    """
    return Target(
        name=artifact.name,
        version=artifact.version,
        digest=artifact.digest,
        labels=list(artifact.labels),
        image_spec=artifact.image_spec,
        runtime=open_judge(artifact, threads),
        twin=load_twin(artifact),
    )


def open_judge(artifact: Artifact, threads: int) -> Runtime:
    """The runtime of verdicts: the same on every host, whatever was the fastest to serve there.

    bf16 is judged on OpenVINO, because ONNX Runtime's CPU engine has no kernels for it.
    """
    try:
        return open_runtime(artifact, threads=threads)
    except RuntimeUnavailable:
        return open_runtime(artifact, name="openvino", threads=threads)


def predict_served(target: Target, inputs: np.ndarray, meter: Meter | None = None) -> np.ndarray:
    """Logits (B, K) float32 of the served model.

    Raises:
        ValueError: the runtime answers in another shape.
    """
    if meter is not None:
        meter.before()
    logits = np.array(target.runtime.predict(inputs), dtype=np.float32)
    if logits.shape != (len(inputs), len(target.labels)):
        expected = (len(inputs), len(target.labels))
        raise ValueError(f"logits of {target.name!r} must be {expected}, got {logits.shape}")
    if meter is not None:
        meter.after(len(inputs))
    return logits


def predict_twin(target: Target, inputs: np.ndarray, meter: Meter) -> np.ndarray:
    """Logits (B, K) float32 of the twin in evaluation mode, without gradients."""
    twin = target.require_twin()
    meter.before()
    with undisturbed(twin), torch.no_grad():
        logits = twin(torch.from_numpy(inputs).to(device_of(twin))).float().cpu().numpy()
    meter.after(len(inputs))
    return logits


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """A sum and not a mean, so that a sample's gradient does not shrink with the batch."""
    return nn.functional.cross_entropy(logits, labels, reduction="sum")


def input_gradient(
    target: Target,
    inputs: np.ndarray,
    labels: np.ndarray,
    meter: Meter,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = summed_cross_entropy,
) -> tuple[np.ndarray, np.ndarray]:
    """The twin's logits and the gradient of each sample's own loss, m included.

    Args:
        target: the model.
        inputs: (B, C, H, W) float32.
        labels: (B,) int64.
        meter: told of the evaluation.
        loss: from logits (B, K) and labels (B,) to a sum over the samples.

    Returns:
        Logits (B, K) and gradients (B, C, H, W), both float32; zero where the logits do not depend
        on the inputs, or the twin hides how.
    """
    twin = target.require_twin()
    meter.before()
    with undisturbed(twin), gradient_path(twin, target.variants[-1]):
        images = torch.tensor(inputs, device=device_of(twin), requires_grad=True)
        logits = twin(images)
        truth = torch.from_numpy(labels).to(images.device)
        if logits.requires_grad:
            (gradient,) = torch.autograd.grad(
                loss(logits, truth), images, allow_unused=True, materialize_grads=True
            )
        else:
            gradient = torch.zeros_like(images)
    meter.after(len(inputs))
    return logits.detach().float().cpu().numpy(), gradient.cpu().numpy()


def device_of(module: nn.Module) -> torch.device:
    """Where a module's parameters or buffers live; the CPU when it has none."""
    tensor: Tensor | None = next(module.parameters(), next(module.buffers(), None))
    return torch.device("cpu") if tensor is None else tensor.device


@contextmanager
def gradient_path(twin: nn.Module, variant: Variant) -> Iterator[None]:
    """Let gradients flow through m ("full") or stop them there ("stopped") inside the block."""
    with nullcontext() if variant == "plain" else metric_gradient(twin, variant == "full"):
        yield


@contextmanager
def undisturbed(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode with frozen parameters, and restore all of it.

    Training modes (module by module), `requires_grad`, `.grad` and the caller's gradient mode are
    as before when the block ends, also after an error.
    """
    modes = [(part, part.training) for part in module.modules()]
    parameters = [(p, p.requires_grad, p.grad) for p in module.parameters()]
    try:
        module.eval()
        for parameter, _, _ in parameters:
            parameter.requires_grad_(False)
        with torch.enable_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
        for parameter, requires_grad, gradient in parameters:
            parameter.requires_grad_(requires_grad)
            parameter.grad = gradient


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Let torch use this many threads inside the block."""
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)
