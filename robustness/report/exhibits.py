"""The samples that a report shows side by side: as they were, what was changed, and attacked."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

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
    """

    clean: np.ndarray
    adversarial: np.ndarray
    attention: tuple[np.ndarray, np.ndarray] | None = None

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
    room = BUDGET // (3 * pixel_bytes) if pixel_bytes else FALLEN + HELD
    few = max(1, min(HELD, room // 4))
    return [*_by_turns(fallen, max(1, min(FALLEN, room - few))), *held[:few]]


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


def collect(folder: Path, report: Report, torch_model: nn.Module | None) -> tuple[Shown, str]:
    """What a report shows.

    Args:
        folder: of the evaluation, with its shards.
        report: what was found.
        torch_model: the evaluated model, whose attention is shown.

    Returns:
        The examples, and why there are no maps of attention where these failed: they are optional
        and the evaluation is complete, so nothing that they raise may end it.
    """
    first = _read(folder, report, 0, None)
    size = first.clean.size if isinstance(first, Pixels) else 0
    chosen = choose(report.samples, pixel_bytes=size)
    shown = [(one, _read(folder, report, one.sample.index, one.attack)) for one in chosen]
    pictures = [views for _, views in shown if isinstance(views, Pixels)]
    if torch_model is None or not pictures:
        return shown, ""
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
    parameter = next(torch_model.parameters(), None)
    device = torch.device("cpu") if parameter is None else parameter.device
    found = []
    for batch in np.array_split(images, max(1, len(images) // _BATCH)):
        flow = diagnose(torch_model, torch.from_numpy(batch).to(device)).rollout
        if flow is None:
            return None
        if flow.ndim != 3 or len(flow) != len(batch):
            raise ValueError(f"expected one map per image, got {tuple(flow.shape)}")
        found.append(flow.float().cpu().numpy())
    return np.concatenate(found)
