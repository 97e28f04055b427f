"""The samples that a report shows side by side: as they were, what was changed, and attacked."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from data.images import class_color
from data.sets import IGNORED
from models.analysis.diagnostics import diagnose
from models.analysis.observation import has_observable_layers
from robustness.attacks.space import is_replication
from robustness.report.lookup import (
    InputLost,
    adversarial_input,
    amplified,
    clean_input,
    difference,
)
from robustness.report.schema import AttackFlags, CleanFlags, Report, Sample

FALLEN, HELD = 12, 3  # how many of each are shown at most
BUDGET = 6 * 2**20  # bytes of pixels: an uncompressible picture is as large as these
_BATCH = 4  # diagnostics keep every layer of every image
_MAP_SIDE = 96  # pixels of a drawn map of attention, about
_COLD, _HOT = np.array([10, 16, 20]), np.array([88, 210, 218])
_LOG = logging.getLogger(__name__)


class Example(NamedTuple):
    """One sample, and the attack on the evaluated model that is shown."""

    sample: Sample
    attack: AttackFlags

    @property
    def clean(self) -> CleanFlags:
        """The evaluated model on the sample as it was."""
        return self.sample.models[0].clean


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """The pictures of an example, (C, H, W) in [0, 1], and what the prediction draws on.

    Attributes:
        clean: as it was.
        adversarial: as the attack left it.
        attention: maps (h, w) of attention, before and after; None where the model has none.
        classes: of pixels (H, W): the mask, and those that a segmenter gives before and after.
    """

    clean: np.ndarray
    adversarial: np.ndarray
    attention: tuple[np.ndarray, np.ndarray] | None = None
    classes: Sequence[np.ndarray] = ()

    @property
    def change(self) -> np.ndarray:
        """What the attack changed, amplified."""
        return amplified(self.clean, self.adversarial, most=None)

    @property
    def times(self) -> str:
        """How much it is amplified."""
        most = float(np.abs(self.adversarial.astype(np.float64) - self.clean).max())
        return f"change × {0.5 / most:.0f}" if most else "no change"

    @property
    def class_maps(self) -> list[np.ndarray]:
        """The classes as pictures, in the colors of `class_color`; white belongs to none."""
        colors = np.array([class_color(index) for index in range(IGNORED)] + [(255, 255, 255)])
        return [(colors[found] / 255).transpose(2, 0, 1) for found in self.classes]

    @property
    def maps(self) -> list[np.ndarray]:
        """The maps of attention as pictures on one scale, each patch as a block."""
        both = self.attention or ()
        top = max((float(found.max()) for found in both), default=0.0) or 1.0
        times = [max(1, _MAP_SIDE // max(found.shape)) for found in both]
        blocks = [np.kron(m / top, np.ones((n, n))) for m, n in zip(both, times, strict=True)]
        return [((_COLD + b[..., None] * (_HOT - _COLD)) / 255).transpose(2, 0, 1) for b in blocks]


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """An example's text, as it was and as the attack left it."""

    clean: str
    adversarial: str

    def parts(self) -> Iterator[tuple[str, str]]:
        """Both as one text: what was taken out ("del"), put in ("ins"), and stayed ("")."""
        for kind, text in difference(self.clean, self.adversarial):
            yield ("", _shortened(text)) if kind == "same" else (kind, text)


def _shortened(text: str, room: int = 160) -> str:
    """An unchanged passage: its ends, where it is long."""
    return text if len(text) <= room else f"{text[: room // 2]} … {text[-room // 2 :]}"


Shown = list[tuple[Example, Pixels | Texts | None]]


def choose(samples: Sequence[Sample], *, pixel_bytes: int = 0) -> list[Example]:
    """The samples that say most: misled by the least change first, then those that barely held.

    Misled ones are taken from one class after the other, so that an easy class does not fill the
    page. Only confirmed successes count as such; a sample that was wrong unattacked shows nothing.

    Args:
        samples: all samples; the evaluated model is their first.
        pixel_bytes: size of one input as 8-bit pixels, which limits how many are shown.
    """
    fallen: list[Example] = []
    held: list[Example] = []
    if samples and samples[0].models[0].clean.pixel_accuracy is not None:
        return _of_pixels(samples, pixel_bytes)
    for sample in samples:
        first = sample.models[0]
        flags = [
            one for one in first.attacks if first.clean.correct and not is_replication(one.name)
        ]
        if falls := [attack for attack in flags if not attack.confirmed]:
            fallen.append(Example(sample, min(falls, key=_ease)))
        elif flags:
            last = max(attack.eps_value for attack in flags)
            strongest = [attack for attack in flags if attack.eps_value == last]
            held.append(Example(sample, min(strongest, key=_margin)))
    fallen.sort(key=lambda example: _ease(example.attack))
    held.sort(key=lambda example: _margin(example.attack))
    most, few = _room(pixel_bytes, pictures=3)
    return [*_by_turns(fallen, most), *held[:few]]


def _room(pixel_bytes: int, pictures: int) -> tuple[int, int]:
    """How many misled ones, and others, are shown with so many pictures each."""
    room = BUDGET // (pictures * pixel_bytes) if pixel_bytes else FALLEN + HELD
    few = max(1, min(HELD, room // 4))
    return max(1, min(FALLEN, room - few)), few


def _of_pixels(samples: Sequence[Sample], pixel_bytes: int) -> list[Example]:
    """Of a segmenter: the images that lost most of their right pixels first, then the least.

    Of each the attack that took the most; images come class by class, by that of most pixels.
    """
    shown = [
        Example(sample, min(sample.models[0].attacks, key=_right))
        for sample in samples
        if sample.models[0].attacks
    ]
    shown.sort(key=lambda one: _right(one.attack) - (one.clean.pixel_accuracy or 0.0))
    most, few = _room(pixel_bytes, pictures=6)
    first = _by_turns(shown, most)
    rest = [one for one in reversed(shown) if all(one is not other for other in first)]
    return first + rest[:few]


def _right(flags: AttackFlags) -> float:
    """The share of pixels that are right under attack."""
    return flags.confirmed_pixel_accuracy or 0.0


def _ease(flags: AttackFlags) -> tuple[bool, float]:
    """How little it took; what survives a PNG comes first."""
    return bool(flags.confirmed_8bit), flags.eps_value


def _margin(flags: AttackFlags) -> float:
    return np.inf if flags.margin is None else flags.margin


def _by_turns(examples: Iterable[Example], number: int) -> list[Example]:
    """The first ones of each class in turn."""
    classes: dict[int, list[Example]] = {}
    for example in examples:
        classes.setdefault(example.clean.index, []).append(example)
    longest = max(map(len, classes.values()), default=0)
    turns = (own[turn] for turn in range(longest) for own in classes.values() if turn < len(own))
    return [example for example, _ in zip(turns, range(number), strict=False)]


def collect(
    folder: Path,
    report: Report,
    torch_model: nn.Module | None,
    masks: np.ndarray | None = None,
) -> tuple[Shown, str]:
    """What a report shows.

    Args:
        folder: of the evaluation, with its shards.
        report: what was found.
        torch_model: the evaluated model, whose attention is shown, of a segmenter its classes.
        masks: (N, H, W) of all samples of a segmenter.

    Returns:
        The examples, and why there are no maps of attention where these failed: they are optional
        and the evaluation is complete, so nothing that they raise may end it.
    """
    if not report.data.labels:  # of a language model: no text is misled
        return [], ""
    first = _read(folder, report, 0, None)
    size = first.clean.size if isinstance(first, Pixels) else 0
    chosen = choose(report.samples, pixel_bytes=size)
    shown = [(one, _read(folder, report, one.sample.index, one.attack)) for one in chosen]
    pictures = [views for _, views in shown if isinstance(views, Pixels)]
    if torch_model is None or not pictures:
        return shown, ""
    if masks is not None:
        return list(_with_classes(shown, torch_model, masks)), ""
    both = [*(views.clean for views in pictures), *(views.adversarial for views in pictures)]
    try:
        maps = _attention_maps(torch_model, np.stack(both))
    except Exception as error:
        _LOG.warning("no attention maps in the report: %s", error, exc_info=True)
        return shown, f"Attention maps are not shown: {error}."
    if maps is None:
        return shown, ""
    pairs = zip(maps, maps[len(pictures) :], strict=False)
    seen = {
        id(views): replace(views, attention=pair)
        for views, pair in zip(pictures, pairs, strict=True)
    }
    return [(one, seen.get(id(views), views)) for one, views in shown], ""


def _with_classes(shown: Shown, torch_model: nn.Module, masks: np.ndarray) -> Iterator[Any]:
    """What is shown, with the classes that a segmenter gives each pixel."""
    device = _device(torch_model)
    for one, views in shown:
        if isinstance(views, Pixels):
            both = torch.from_numpy(np.stack([views.clean, views.adversarial])).to(device)
            with torch.no_grad():
                found = torch_model(both).argmax(1).cpu().numpy()
            views = replace(views, classes=[masks[one.sample.index], *found])
        yield one, views


def _read(
    folder: Path, report: Report, index: int, attack: AttackFlags | None
) -> Pixels | Texts | None:
    """An input as it was and as an attack left it, if any; None where it is lost."""
    digest = report.summary.models[0].digest
    try:
        clean = changed = clean_input(folder, digest, index)
        if attack is not None:
            changed = adversarial_input(folder, digest, index, report.spec, attack)
    except InputLost:
        return None
    if isinstance(clean, str) or isinstance(changed, str):
        return Texts(clean=str(clean), adversarial=str(changed))
    return Pixels(clean=clean, adversarial=changed)


def _attention_maps(torch_model: nn.Module, images: np.ndarray) -> np.ndarray | None:
    """Attention of the head on the patches of images (N, C, H, W), through all layers (rollout).

    Returns:
        (N, h, w) shares of the patches, or None where the model has no attention to show.

    Raises:
        ValueError: the model cannot be observed.
    """
    if not has_observable_layers(torch_model):
        return None
    device, found = _device(torch_model), []
    for batch in np.array_split(images, max(1, len(images) // _BATCH)):
        flow = diagnose(torch_model, torch.from_numpy(batch).to(device)).rollout
        if flow is None:
            return None
        if flow.ndim != 3 or len(flow) != len(batch):
            raise ValueError(f"expected one map per image, got {tuple(flow.shape)}")
        found.append(flow.float().cpu().numpy())
    return np.concatenate(found)


def _device(torch_model: nn.Module) -> torch.device:
    parameter = next(torch_model.parameters(), None)
    return torch.device("cpu") if parameter is None else parameter.device
