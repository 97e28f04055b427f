"""Evaluate any classifier from a notebook: arrays in; arrays, accuracies and the report out."""

import hashlib
import html
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from data.images import ImageSpec
from data.sets import ImageSet, Origin
from robustness import store as shards
from robustness.attacking import cell_shards, stored_batch
from robustness.attacks.base import Attack, Batch, shown
from robustness.console import render
from robustness.evaluation import evaluate as run_evaluation
from robustness.kinds import NotPossible
from robustness.progress import Meter, Progress
from robustness.report import html as page
from robustness.report.schema import Figure, Report
from robustness.sanity.checks import not_tried
from robustness.spec import ATTACKS, Cell, EvaluationSpec
from robustness.target import ImageTarget, Inputs, device_of, undisturbed

Images = np.ndarray | Tensor
Answer = Callable[[Any], Any]
"""Scores (N, K), or classes (N,) as whole numbers, for images (N, C, H, W) in [0, 1]."""

_BATCH = 32
_LEAST = np.float32(1e-30)  # of a probability that is read as its logarithm
_SURE = np.float32(100)  # in the place of a score, for the class of a model that shows nothing else


class Accuracy(NamedTuple):
    """A share in [0, 1] with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation found; printing it shows the table, a notebook the whole report.

    Attributes:
        clean: accuracy on the images as they are.
        robust: accuracy under each attack, by name and budget, as in "pgd 8/255".
        worst: accuracy under the worst attack on each image, by budget, as in "8/255".
        adversarial: what each attack made of the images, (N, C, H, W) float32, by the same names as
            `robust`; of an image that it did not fool, what it tried last, or the image.
        report: all of it; see docs/reference/report.md.
        page: the same as one HTML file.
        not_tried: what the model does not show, and which attacks were left out for it; empty where
            it shows gradients.
    """

    clean: Accuracy
    robust: dict[str, Accuracy]
    worst: dict[str, Accuracy]
    adversarial: dict[str, np.ndarray]
    report: Report
    page: str
    not_tried: str

    def __str__(self) -> str:
        """The report's table and sentences."""
        return render(self.report)

    def _repr_html_(self) -> str:
        """The report's page, in a frame of its own."""
        inside = html.escape(self.page, quote=True)
        return f'<iframe srcdoc="{inside}" style="width:100%;height:640px;border:0"></iframe>'


def evaluate(
    model: nn.Module | Answer,
    images: Images,
    labels: Sequence[int] | Images | None = None,
    *,
    attacks: Sequence[str | Mapping[str, Any] | Attack],
    eps: str | float | Sequence[str | float] | None = None,
    norm: str | None = None,
    classes: Sequence[str] | None = None,
    name: str = "model",
    folder: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    **fields: Any,
) -> Evaluation:
    """Evaluate a classifier of images under attack.

    A module is attacked with gradients; so is a function where `images` is a tensor and its answer
    follows from it differentiably. Any other function is asked, with what `images` is, and shows
    scores or classes: attacks that need more are left out, and `Evaluation.not_tried` says so.

    Args:
        model: an `nn.Module`, run in evaluation mode and left as it was; or a function. Images
            (B, C, H, W) to scores (B, K), or to classes (B,) as whole numbers.
        images: (N, C, H, W) float in [0, 1], one or three channels.
        labels: (N,) true classes; without them the model's own answers stand in, and the figures
            are about stability.
        attacks: names, or objects of the spec, see docs/reference/attacks.md.
        eps: radii such as "8/255" or 0.03, for those attacks that have no eps of their own.
        norm: of these radii, for every attack named; None: of each the one it has by default.
        classes: their names; needed where only classes are shown and not all of them appear.
        name: of the model in the report.
        folder: where shards and report are kept; in none when not given.
        on_progress: called after every batch.
        fields: further fields of the spec, such as seed, top_k or gate.

    Raises:
        ValueError: images or labels are not what they should be, or the model answers otherwise.
        NotPossible: no attack is left that works with what the model shows.
    """
    inputs, served = _as_images(images), _Served(model, images)
    truth = None if labels is None else _as_labels(labels, len(inputs))
    target = _target(served, inputs, truth, classes, name)
    wanted = [_attack(one, eps, norm) for one in attacks]
    tried = [one for one in wanted if _works(one, target)]
    target = replace(target, left_out=tuple(one.label for one in wanted if one not in tried))
    if not tried:
        raise NotPossible(not_tried(target) or "attacks must name at least one")
    spec = EvaluationSpec.model_validate({"attacks": tried, **fields})
    given = _Arrays(
        names=[str(i) for i in range(len(inputs))], labels=truth, label_names=None, reader=_no_file,
        origin=Origin(name="arrays"), arrays=inputs,
    )  # fmt: skip
    with nullcontext(folder) if folder else tempfile.TemporaryDirectory() as place:
        report = run_evaluation(
            spec, [target], given, Path(place), on_progress=on_progress,
            threads=torch.get_num_threads(),
        )  # fmt: skip
        return _evaluation(report, target, given, Path(place))


class _Served:
    """A model as it is asked: a runtime of scores (B, K).

    Probabilities that a function shows are read as their logarithms, which are logits.

    Attributes:
        torch_model: what gradients follow; None where nothing shows them.
        classes_alone: whether it answers with classes; then each class counts for a score.
        num_classes: of these scores; to be set for a model that shows classes alone.
    """

    def __init__(self, model: nn.Module | Answer, images: Images) -> None:
        self._model, self._tensors = model, isinstance(images, Tensor)
        self._device = images.device if isinstance(images, Tensor) else torch.device("cpu")
        self.torch_model = model if isinstance(model, nn.Module) else None
        if self.torch_model is None and isinstance(images, Tensor):
            self.torch_model = self._as_module(images[:1])
        first = self.answer(_as_images(images[:1]))
        self.classes_alone, self.num_classes = first.ndim == 1, 0
        if self.classes_alone:
            self.torch_model = None
        self._probabilities = (
            self.torch_model is None
            and not self.classes_alone
            and bool(first.min() >= 0 and abs(first.sum() - 1) < 1e-4)
        )

    @property
    def name(self) -> str:
        """Which runtime."""
        return "torch" if isinstance(self._model, nn.Module) else "function"

    @property
    def precision(self) -> str:
        """Arithmetic; of classes nothing is known."""
        return "classes" if self.classes_alone else "fp32"

    def answer(self, images: np.ndarray) -> np.ndarray:
        """What the model answers, (B, K) float32 or (B,) int64.

        Raises:
            ValueError: it answers otherwise.
        """
        found = self._ask(images)
        array = found.detach().float().cpu().numpy() if _floating(found) else np.asarray(found)
        if array.ndim == 1 and np.issubdtype(array.dtype, np.integer) and len(array) == len(images):
            return array.astype(np.int64)
        if array.ndim == 2 and len(array) == len(images) and array.shape[1] > 1:
            return array.astype(np.float32)
        raise ValueError(
            f"model must answer with scores ({len(images)}, K) or whole numbers ({len(images)},), "
            f"got {array.shape} {array.dtype}"
        )

    def count(self, images: np.ndarray, labels: np.ndarray | None) -> int:
        """The number of classes; where they are shown alone, of those that appear."""
        if not self.classes_alone:
            return self.answer(images[:1]).shape[1]
        parts = [self.answer(images[i : i + _BATCH]) for i in range(0, len(images), _BATCH)]
        return 1 + int(np.concatenate([*parts, np.ones(1) if labels is None else labels]).max())

    def predict(self, inputs: Any) -> np.ndarray:
        """See `runtimes.base.Runtime.predict`."""
        found = self.answer(inputs)
        if found.ndim == 2:
            return np.log(np.maximum(found, _LEAST)) if self._probabilities else found
        if not ((found >= 0) & (found < self.num_classes)).all():
            raise ValueError(f"classes must name all classes, got class {int(found.max())}")
        return np.where(np.arange(self.num_classes) == found[:, None], _SURE, np.float32(0))

    def _ask(self, images: np.ndarray) -> Any:
        if isinstance(self._model, nn.Module):
            with undisturbed(self._model), torch.no_grad():
                return self._model(torch.from_numpy(images).to(device_of(self._model)))
        if not self._tensors:
            return self._model(images)
        with torch.no_grad():
            return self._model(torch.from_numpy(images).to(self._device))

    def _as_module(self, image: Tensor) -> nn.Module | None:
        """The function as a module, if its answer follows from a tensor differentiably."""
        with torch.enable_grad():
            found = self._model(image.detach().float().requires_grad_())
        differentiable = isinstance(found, Tensor) and found.requires_grad and found.ndim == 2
        return _Function(self._model, self._device) if differentiable else None


class _Function(nn.Module):
    """A differentiable function as a module."""

    def __init__(self, function: Answer, device: torch.device) -> None:
        super().__init__()
        self._function = function
        self.register_buffer("_where", torch.zeros(0, device=device))

    def forward(self, images: Tensor) -> Tensor:
        """Scores (B, K) for images (B, C, H, W)."""
        return self._function(images)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrays(ImageSet):
    """Images as they are read by the model; no files.

    Attributes:
        arrays: (N, C, H, W) float32 in [0, 1].
    """

    arrays: np.ndarray

    def take(self, indices: Sequence[int] | np.ndarray) -> Self:
        """See `SampleSet.take`."""
        chosen = self.arrays[np.asarray(indices, np.int64)]
        return replace(super(_Arrays, self).take(indices), arrays=chosen)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArrayTarget(ImageTarget):
    """A model of arrays; of 8 bit it sees the nearest levels."""

    def load(self, part: Any) -> np.ndarray | list[str]:
        """The arrays themselves."""
        return part.arrays

    def predict_8bit(self, inputs: Inputs, served: np.ndarray, meter: Meter) -> np.ndarray:
        """See `Target.predict_8bit`."""
        del served
        return self.predict(np.round(np.asarray(inputs) * 255) / np.float32(255), meter)


def _target(
    served: _Served,
    inputs: np.ndarray,
    truth: np.ndarray | None,
    classes: Sequence[str] | None,
    name: str,
) -> _ArrayTarget:
    """The model under evaluation; its classes are counted where they have no names."""
    count = served.count(inputs, truth)
    names = [str(i) for i in range(count)] if classes is None else list(classes)
    if len(names) != count and not (served.classes_alone and len(names) > count):
        raise ValueError(f"classes must name {count} classes, got {len(names)}")
    served.num_classes = len(names)
    _, channels, height, width = inputs.shape
    return _ArrayTarget(
        name=name, version="1", digest=_digest(served, inputs), labels=names, runtime=served,
        torch_model=served.torch_model,
        image_spec=ImageSpec(channels=channels, height=height, width=width),
    )  # fmt: skip


def _digest(served: _Served, inputs: np.ndarray) -> str:
    """sha256 of a module's parameters and some answers; of a function a drawn one."""
    model = served.torch_model
    if model is None or isinstance(model, _Function):
        return secrets.token_hex(32)
    found = hashlib.sha256(repr(model).encode() + served.answer(inputs[:_BATCH]).tobytes())
    for key, value in model.state_dict().items():
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        found.update(key.encode() + raw.tobytes())
    return found.hexdigest()


def _as_images(images: Images) -> np.ndarray:
    """Images as arrays (N, C, H, W) float32.

    Raises:
        ValueError: they are not that, or pixels lie outside [0, 1].
    """
    if isinstance(images, Tensor):
        images = (images.float() if images.is_floating_point() else images).detach().cpu().numpy()
    found = np.asarray(images)
    if found.ndim != 4 or not np.issubdtype(found.dtype, np.floating) or not len(found):
        raise ValueError(f"images must be (N, C, H, W) float, got {found.shape} {found.dtype}")
    if not ((found >= 0) & (found <= 1)).all():
        low, high = found.min(), found.max()
        raise ValueError(f"images must lie in [0, 1], got [{low:g}, {high:g}]")
    return np.ascontiguousarray(found, np.float32)


def _as_labels(labels: Any, count: int) -> np.ndarray:
    """Labels (N,) int64.

    Raises:
        ValueError: they are no whole numbers, or not one an image.
    """
    found = np.asarray(labels.cpu() if isinstance(labels, Tensor) else labels)
    if found.shape != (count,) or not np.issubdtype(found.dtype, np.integer):
        raise ValueError(
            f"labels must be ({count},) whole numbers, got {found.shape} {found.dtype}"
        )
    return found.astype(np.int64)


def _attack(asked: str | Mapping[str, Any] | Attack, eps: Any, norm: str | None) -> Attack:
    """An attack of the spec, with the common radii where it has a use for them and none itself."""
    if isinstance(asked, Attack):
        return asked
    fields = {"name": asked} if isinstance(asked, str) else dict(asked)
    kind = ATTACKS.get(fields.get("name", ""))
    if kind is not None and kind.info.norms and eps is not None and "eps" not in fields:
        radii = [eps] if isinstance(eps, str | float | int) else list(eps)
        fields = ({"norm": norm} if norm else {}) | {"eps": radii} | fields
    [attack] = EvaluationSpec.model_validate({"attacks": [fields]}).attacks
    return attack


def _works(attack: Attack, target: ImageTarget) -> bool:
    """Whether the model shows what an attack needs."""
    shows = "label" if target.names_class else "scores"
    copied = target.torch_model is not None
    access = shown(gradients=copied, weights=copied, token_wise=copied, graph=False, shows=shows)
    return all(part.info.access in access for part in attack.parts(len(target.labels)))


def _evaluation(report: Report, target: ImageTarget, given: _Arrays, folder: Path) -> Evaluation:
    """What is in an evaluation's folder."""
    model = report.summary.models[0]
    cells = [cell for cell in report.spec.cells if cell.attack.info.role == "attack"]
    keys = [f"{found.name} {found.budget}" for found in model.attacks]
    made = [_adversarial(report, target, given, folder, *pair) for pair in enumerate(cells)]
    return Evaluation(
        clean=_accuracy(model.clean),
        robust={key: _accuracy(each.robust) for key, each in zip(keys, model.attacks, strict=True)},
        worst={budget: _accuracy(figure) for budget, figure in model.worst.items()},
        adversarial=dict(zip(keys, made, strict=True)),
        report=report,
        page=(folder / page.FILE).read_text(encoding="utf-8"),
        not_tried=" ".join(report.not_tried),
    )


def _accuracy(figure: Figure) -> Accuracy:
    return Accuracy(figure.top1, *figure.ci)


def _adversarial(
    report: Report, target: ImageTarget, given: _Arrays, folder: Path, place: int, cell: Cell
) -> np.ndarray:
    """What one attack made of all images, (N, C, H, W): of each the worst that its parts made."""
    found = given.arrays.copy()
    for chosen in shards.ranges(len(found)):
        clean = Batch(
            inputs=given.arrays[chosen.start : chosen.stop], labels=np.zeros(len(chosen), np.int64)
        )
        for shard in cell_shards(target, chosen.start, cell):
            stored = shards.whole(shard.path(folder))
            images = stored_batch(stored, clean, cell.budget).images
            for index in chosen:
                flags = report.samples[index].models[0].attacks[place]
                if (flags.part, flags.variant) == (shard.part.label, shard.variant):
                    found[index] = images[index - chosen.start]
    return found


def _no_file(_: int) -> Any:
    raise TypeError("arrays are no files")


def _floating(answer: Any) -> bool:
    return isinstance(answer, Tensor) and answer.is_floating_point()
