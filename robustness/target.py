"""What is attacked: the served model, and its PyTorch model where gradients are needed."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, ClassVar, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from data.images import ImageSpec, decode_image, framed, to_input, to_png
from data.sets import IGNORED, MaskSet, load_inputs, load_masks
from models.attention.base import has_metric, metric_gradient
from models.layers.images import ImageModel
from robustness.kinds import ASKING, Endpoint, InputKind, NotPossible, Variant
from robustness.progress import Meter
from robustness.tasks import Classification, Segmentation, Task
from runtimes.artifact import Artifact
from runtimes.base import Runtime, RuntimeUnavailable
from runtimes.registry import open_runtime
from runtimes.torch_model import ImportedCopy

Inputs = np.ndarray | Sequence[str]
Known = TypeVar("Known")
_KNOWN: "WeakKeyDictionary[object, dict[type, tuple[str, Any]]]" = WeakKeyDictionary()
"""By model or runtime, and by type: the digest of its target, and what is known of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One model under evaluation.

    Attributes:
        name: its name in the report.
        version: its version in the report.
        digest: sha256 of what is scored; for an artifact, that of its manifest.
        labels: names of its K classes.
        runtime: the served model; results are confirmed on it.
        torch_model: the same function as a differentiable module, or None.
        endpoint: where the model lies behind an address, which `runtime` asks; else None.
        notes: what a reader of its figures must know of where it comes from.
        left_out: attacks that were asked for and need more than the model shows.
    """

    name: str
    version: str
    digest: str
    labels: list[str]
    runtime: Runtime
    torch_model: nn.Module | None
    endpoint: Endpoint | None = None
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    reads: ClassVar[InputKind]
    task: ClassVar[Task] = Classification()

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """Shape of the logits of one input, (K,)."""
        return (len(self.labels),)

    @property
    def names_class(self) -> bool:
        """Whether it shows the class alone."""
        seen = None if self.endpoint is None else self.endpoint.shows
        return seen == "label" or self.runtime.precision == "classes"

    @property
    def rounds(self) -> bool:
        """Whether the served model rounds to 8 bit what its copy, made of it, does not."""
        return self.runtime.precision == "int8" and isinstance(self.torch_model, ImportedCopy)

    @property
    def elliptical(self) -> bool:
        """Whether the PyTorch model estimates a metric, and so is attacked in two ways."""
        return self.torch_model is not None and has_metric(self.torch_model)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """The ways of taking gradients; the per-sample worst of them is the result."""
        return ("stopped", "full") if self.elliptical else ("plain",)

    def require_torch_model(self) -> nn.Module:
        """The PyTorch model.

        Raises:
            NotPossible: there is none, so gradient attacks are impossible.
        """
        if self.torch_model is None:
            raise NotPossible(
                "gradient attacks need a differentiable model, but "
                f"{self.name!r} has none: {ASKING[self.reads]}"
            )
        return self.torch_model

    def known(self, kind: type[Known], owner: object, make: Callable[[], Known]) -> Known:
        """What was found of a part of the target, its weights or its graph: once for all calls."""
        kept = _KNOWN.setdefault(owner, {})
        if kept.get(kind, (None,))[0] != self.digest:
            kept[kind] = self.digest, make()
        return kept[kind][1]

    @property
    def diagonal(self) -> float:
        """How far black and white lie apart (l2); infinite where inputs have no such distance."""
        return math.inf

    def load(self, part: Any) -> np.ndarray | list[str]:
        """Inputs as the model reads them, from a set of what it `reads`."""
        raise NotImplementedError

    def truth(self, part: Any) -> np.ndarray | None:
        """The labels of the inputs of a set, (N,) int64; None where it has none."""
        return part.labels

    def predict(self, inputs: Inputs, meter: Meter | None = None) -> np.ndarray:
        """Logits (N, K) float32 of the served model.

        Args:
            inputs: (N, C, H, W) float32, or N texts.
            meter: told of every batch; its `Cancelled` ends the call.

        Raises:
            ValueError: the runtime answers in another shape, or cannot read an input.
        """
        return self._in_batches(inputs, self._serve, meter)

    def predict_again(self, inputs: Inputs, first: np.ndarray) -> np.ndarray:
        """Logits (N, K) of a second answer; see `predict`, which gave the `first` one."""
        if self.endpoint is None:
            return self.predict(inputs)
        return self.endpoint.predict_again(self._read(inputs), first)

    def predict_torch(self, inputs: Inputs, meter: Meter | None = None) -> np.ndarray:
        """Logits (N, K) float32 of the PyTorch model in evaluation mode; see `predict`."""
        torch_model = self.require_torch_model()

        def answer(part: Inputs) -> np.ndarray:
            """Logits of one batch."""
            with undisturbed(torch_model), torch.no_grad():
                return torch_model(*self._tensors(part)).float().cpu().numpy()

        return self._in_batches(inputs, answer, meter)

    def predict_8bit(self, inputs: Inputs, served: np.ndarray, meter: Meter) -> np.ndarray:
        """Logits (N, K) of inputs as the public path reads them; `served` where it changes none."""
        del inputs, meter
        return served

    def true_classes(self, inputs: Inputs, labels: np.ndarray) -> np.ndarray:
        """True classes (N,) of changed inputs, those of the clean ones where they cannot change."""
        del inputs
        return labels

    def ask_clean(
        self, inputs: Inputs, labels: np.ndarray, served: np.ndarray, meter: Meter
    ) -> tuple[np.ndarray, np.ndarray]:
        """The PyTorch model's logits (N, K), and where its input gradient says nothing, (N,) bool.

        Args:
            inputs: clean ones.
            labels: (N,) int64.
            served: (N, K) logits of the served model, for where there is no PyTorch model.
            meter: told of every evaluation.
        """
        del labels
        torch_model = served if self.torch_model is None else self.predict_torch(inputs, meter)
        return torch_model, np.zeros(len(inputs), bool)

    def _in_batches(
        self, inputs: Inputs, answer: Callable[[Inputs], np.ndarray], meter: Meter | None
    ) -> np.ndarray:
        parts: list[np.ndarray] = []
        for part in self._batches(inputs):
            if meter is not None:
                meter.before()
            logits = np.array(answer(part), dtype=np.float32)
            expected = (len(part), *self.answer_shape)
            if logits.shape != expected:
                raise ValueError(f"logits of {self.name!r} must be {expected}, got {logits.shape}")
            if meter is not None:
                meter.after(len(part))
            parts.append(logits)
        return np.concatenate(parts) if parts else np.zeros((0, *self.answer_shape), np.float32)

    def _batches(self, inputs: Inputs) -> Iterator[Inputs]:
        yield inputs

    def _serve(self, inputs: Inputs) -> np.ndarray:
        return np.asarray(self.runtime.predict(self._read(inputs)))

    def _read(self, inputs: Inputs) -> np.ndarray | Mapping[str, np.ndarray]:
        """Inputs as the runtime takes them."""
        raise NotImplementedError

    def _tensors(self, inputs: Inputs) -> tuple[Tensor, ...]:
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTarget(Target):
    """One image model under evaluation.

    Attributes:
        image_spec: how images become its inputs.
        graph: gives the served graph as ONNX; None where nobody can see it.
    """

    image_spec: ImageSpec
    graph: Callable[[], bytes] | None = None
    reads: ClassVar[InputKind] = "image"

    def require_graph(self) -> bytes:
        """The served graph as ONNX.

        Raises:
            NotPossible: nobody can see it.
        """
        if self.graph is None:
            raise NotPossible(f"{self.name!r} shows no graph")
        return self.graph()

    @property
    def diagonal(self) -> float:
        """See `Target.diagonal`."""
        spec = self.image_spec
        return math.sqrt(spec.channels * spec.height * spec.width)

    def load(self, part: Any) -> np.ndarray | list[str]:
        """Images (N, C, H, W), float32 in [0, 1]."""
        return load_inputs(part, self.image_spec)

    def predict_8bit(self, inputs: Inputs, served: np.ndarray, meter: Meter) -> np.ndarray:
        """Images written as PNG, decoded and preprocessed again."""
        del served
        return self.predict(in_8bit(np.asarray(inputs), self.image_spec), meter)

    def ask_clean(
        self, inputs: Inputs, labels: np.ndarray, served: np.ndarray, meter: Meter
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Target.ask_clean`."""
        if self.torch_model is None:
            return served, np.zeros(len(inputs), bool)
        torch_model, gradient = input_gradient(self, np.asarray(inputs), labels, meter)
        blind = (gradient == 0) | ~np.isfinite(gradient)
        return torch_model, blind.reshape(len(inputs), -1).all(axis=1)

    def _read(self, inputs: Inputs) -> np.ndarray | Mapping[str, np.ndarray]:
        return np.asarray(inputs)

    def _tensors(self, inputs: Inputs) -> tuple[Tensor, ...]:
        return (torch.from_numpy(np.asarray(inputs)).to(device_of(self.require_torch_model())),)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskTarget(ImageTarget):
    """One segmenter under evaluation: logits (N, K, H, W), labels (N, H, W) with `IGNORED`."""

    task: ClassVar[Task] = Segmentation()

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """(K, H, W)."""
        return len(self.labels), self.image_spec.height, self.image_spec.width

    def truth(self, part: Any) -> np.ndarray | None:
        """The masks of a set, (N, H, W) int64; None where it has none."""
        if not isinstance(part, MaskSet):
            return None
        return load_masks(part, self.image_spec).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizedTarget(ImageTarget):
    """An image model that is given images as it normalizes them itself.

    Attributes:
        mean: (C, 1, 1) float64.
        std: (C, 1, 1) float64.
    """

    mean: np.ndarray
    std: np.ndarray

    def from_pixels(self, images: np.ndarray) -> np.ndarray:
        """The normalized tensor (N, C, H, W) float32 of pixels."""
        return ((images - self.mean) / self.std).astype(np.float32)

    def to_pixels(self, images: np.ndarray) -> np.ndarray:
        """Pixels (N, C, H, W) float32 of a normalized tensor, in [0, 1] or not."""
        return (images * self.std + self.mean).astype(np.float32)

    def _read(self, inputs: Inputs) -> np.ndarray | Mapping[str, np.ndarray]:
        return self.to_pixels(np.asarray(inputs))


class _Normalized(nn.Module):
    """A model of pixels as one of normalized tensors."""

    def __init__(self, model: ImageModel) -> None:
        super().__init__()
        self.model: ImageModel = model

    def forward(self, images: Tensor) -> Tensor:
        """Logits (B, K) of normalized tensors (B, C, H, W)."""
        return self.model(images * self.model.std + self.model.mean)


def normalized(target: Target) -> NormalizedTarget:
    """The same model, given what it makes of pixels first of all.

    Raises:
        NotPossible: nobody knows how it normalizes images.
    """
    model = target.torch_model
    if target.task.answer == "pixels":
        raise NotPossible("space must be pixels: the papers attack no segmenter")
    if not isinstance(target, ImageTarget) or not isinstance(model, ImageModel):
        raise NotPossible(f"space must be pixels: {target.name!r} does not say how it normalizes")
    mean, std = (one.detach().cpu().double().numpy()[0] for one in (model.mean, model.std))
    known = {one.name: getattr(target, one.name) for one in fields(target)}
    known["torch_model"] = _Normalized(model)
    return NormalizedTarget(**known, mean=mean, std=std)


def in_8bit(inputs: np.ndarray, spec: ImageSpec) -> np.ndarray:
    """Inputs as the public path sees them: written as PNG, decoded and preprocessed again."""
    files = (to_png(framed(pixels, spec)) for pixels in inputs)
    return np.stack([to_input(decode_image(file), spec) for file in files])


def open_scorer(artifact: Artifact, threads: int) -> Runtime:
    """The runtime of results: the same on every host, whatever was the fastest to serve there.

    bf16 is scored on OpenVINO, because ONNX Runtime's CPU engine has no kernels for it.
    """
    try:
        return open_runtime(artifact, threads=threads)
    except RuntimeUnavailable:
        return open_runtime(artifact, name="openvino", threads=threads)


def summed_cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """A sum and not a mean, so that a sample's gradient does not shrink with the batch."""
    return cross_entropies(logits, labels).sum()


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each sample (B,), of a segmentation of each pixel (B, H, W).

    That of a pixel whose label is `IGNORED` is 0.
    """
    none = IGNORED if labels.ndim > 1 else -1
    return nn.functional.cross_entropy(logits, labels, reduction="none", ignore_index=none)


def input_gradient(
    target: Target,
    inputs: np.ndarray,
    labels: np.ndarray,
    meter: Meter,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = summed_cross_entropy,
) -> tuple[np.ndarray, np.ndarray]:
    """The PyTorch model's logits and the gradient of each sample's own loss, m included.

    Args:
        target: the model.
        inputs: (B, C, H, W) float32.
        labels: (B,) int64, of a segmenter (B, H, W).
        meter: told of the evaluation.
        loss: from logits (B, K, ...) and labels to a sum over the samples.

    Returns:
        Logits (B, K, ...) and gradients (B, C, H, W), both float32; zero where the logits do not
        depend on the inputs, or the PyTorch model hides how.
    """
    torch_model = target.require_torch_model()
    meter.before()
    with undisturbed(torch_model), gradient_path(torch_model, target.variants[-1]):
        images = torch.tensor(inputs, device=device_of(torch_model), requires_grad=True)
        logits = torch_model(images)
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
def gradient_path(torch_model: nn.Module, variant: Variant) -> Iterator[None]:
    """Let gradients flow through m ("full") or stop them there ("stopped") inside the block."""
    with nullcontext() if variant == "plain" else metric_gradient(torch_model, variant == "full"):
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
