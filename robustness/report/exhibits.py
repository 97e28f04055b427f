"""The samples that a report shows side by side: as they were, what was changed, and attacked."""

import base64
import difflib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from data.images import to_png
from robustness.report.lookup import amplified
from robustness.report.markup import Markup, element, join, named
from robustness.report.schema import AttackFlags, ModelFlags, Sample
from robustness.report.sentences import NBSP

FALLEN, HELD = 12, 3  # how many of each are shown at most
BUDGET = 6 * 2**20  # bytes of pixels: an uncompressible picture is as large as these

_OUTCOMES = {"fallen": "misled", "held": "held"}
_ENLARGED = 64  # pictures up to this size are shown with hard pixels
_MAP_SIDE = 96  # pixels of a drawn map of attention, about
_COLD, _HOT = np.array([10, 16, 20]), np.array([88, 210, 218])

Outcome = Literal["fallen", "held"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sample under one attack on the evaluated model.

    Attributes:
        sample: the sample.
        clean: the model on it as it was.
        attack: the attack shown.
        outcome: whether the served model was misled.
    """

    sample: Sample
    clean: ModelFlags
    attack: AttackFlags
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Pixels:
    """The pictures of an example, and what the prediction draws on.

    Attributes:
        clean: (C, H, W) in [0, 1].
        adversarial: (C, H, W) in [0, 1].
        attention: maps (h, w) of attention, before and after; None where the model has none.
    """

    clean: np.ndarray
    adversarial: np.ndarray
    attention: tuple[np.ndarray, np.ndarray] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """An example's text, as it was and as the attack left it."""

    clean: str
    adversarial: str


def choose(samples: Sequence[Sample], *, pixel_bytes: int = 0) -> list[Example]:
    """The samples that say most: misled by the least change first, then those that barely held.

    Misled ones are taken from one class after the other, so that an easy class does not fill the
    page. Only confirmed successes count as such; a sample that was wrong unattacked shows nothing.

    Args:
        samples: all samples; the evaluated model is their first.
        pixel_bytes: size of one input as 8-bit pixels, which limits how many are shown.
    """
    candidates = [s for s in samples if s.models[0].clean.correct and s.models[0].attacks]
    fallen = sorted(filter(None, map(_fall, candidates)), key=_ease)
    held = sorted(filter(None, map(_stand, candidates)), key=_lead)
    room = BUDGET // (3 * pixel_bytes) if pixel_bytes else FALLEN + HELD
    few = max(1, min(HELD, room // 4))
    return [*_by_turns(fallen, max(1, min(FALLEN, room - few))), *held[:few]]


def _fall(sample: Sample) -> Example | None:
    """The easiest confirmed success; one that survives a PNG where there is such a one."""
    model = sample.models[0]
    falls = [attack for attack in model.attacks if not attack.confirmed]
    if not falls:
        return None
    best = min(falls, key=lambda flags: (bool(flags.confirmed_8bit), flags.eps_value))
    return Example(sample=sample, clean=model, attack=best, outcome="fallen")


def _stand(sample: Sample) -> Example | None:
    """The closest call of a sample that no attack misled; None for the others."""
    model = sample.models[0]
    if not all(attack.confirmed for attack in model.attacks):
        return None
    last = max(attack.eps_value for attack in model.attacks)
    strongest = [attack for attack in model.attacks if attack.eps_value == last]
    return Example(sample=sample, clean=model, attack=min(strongest, key=_margin), outcome="held")


def _ease(example: Example) -> tuple[bool, float, int]:
    flags = example.attack
    return bool(flags.confirmed_8bit), flags.eps_value, example.sample.index


def _lead(example: Example) -> tuple[float, int]:
    return _margin(example.attack), example.sample.index


def _margin(flags: AttackFlags) -> float:
    return np.inf if flags.margin is None else flags.margin


def _by_turns(examples: Iterable[Example], number: int) -> list[Example]:
    """The first ones of each class in turn."""
    classes: dict[int, list[Example]] = {}
    for example in examples:
        classes.setdefault(example.clean.clean.index, []).append(example)
    longest = max(map(len, classes.values()), default=0)
    turns = (own[turn] for turn in range(longest) for own in classes.values() if turn < len(own))
    return [example for example, _ in zip(turns, range(number), strict=False)]


def exhibit(
    example: Example, views: Pixels | Texts | None, labels: Sequence[str], title: str
) -> Markup:
    """One sample with the answers before and after.

    Args:
        example: see `choose`.
        views: the sample itself; None where it is lost.
        labels: names of the classes.
        title: name of the attack.
    """
    sample, clean, attack = example.sample, example.clean.clean, example.attack
    sure = "" if clean.probability is None else f" {_chance(clean.probability)}"
    before = join(named(labels[clean.index]), sure)
    after = named(labels[attack.adversarial_index])
    tone = "hold" if example.outcome == "held" else "fall"
    if isinstance(views, Pixels):
        body = _pictures(views, before, after, tone)
    else:
        body = _texts(views, before, after, tone)
    facts = [
        element("b", f"#{sample.index} ", named(sample.name)),
        element("span", f"{title} {attack.eps}"),
        element("span", _OUTCOMES[example.outcome], class_=f"outcome {tone}"),
    ]
    if sample.label is not None:
        facts.insert(1, element("span", "label ", named(labels[sample.label])))
    if example.outcome == "fallen" and attack.confirmed_8bit is not None:
        facts.append(element("span", "not in 8 bit" if attack.confirmed_8bit else "also in 8 bit"))
    line = element("p", join(*facts), class_="exhibit-line")
    return element("li", body, line, class_=f"exhibit {example.outcome}")


def _pictures(views: Pixels, before: Markup, after: Markup, tone: str) -> Markup:
    most = float(np.abs(views.adversarial.astype(np.float64) - views.clean).max())
    change = amplified(views.clean, views.adversarial, most=None)
    times = f"change × {0.5 / most:.0f}" if most else "no change"
    frames = [
        _frame(views.clean, "as it was", "clean", before, "hold"),
        _frame(change, "what the attack changed, amplified", times, "", ""),
        _frame(views.adversarial, "after the attack", "adversarial", after, tone),
    ]
    if views.attention is None:
        return element("div", join(*frames), class_="frames")
    first, second = views.attention
    top = max(float(first.max()), float(second.max())) or 1.0
    maps = [
        _map(first / top, "attention before", views.clean.shape),
        element("div", "attention: bright patches weigh most", class_="frame-title aside"),
        _map(second / top, "attention after", views.clean.shape),
    ]
    return element("div", join(*frames, *maps), class_="frames")


def _frame(pixels: np.ndarray, alt: str, title: str, answer: Markup | str, tone: str) -> Markup:
    caption = element(
        "figcaption",
        element("span", title, class_="frame-title"),
        element("span", answer, class_=f"answer {tone}") if answer else None,
    )
    return element("figure", _image(to_png(pixels), alt, pixels.shape), caption, class_="frame")


def _map(shares: np.ndarray, title: str, shape: tuple[int, ...]) -> Markup:
    """A map of attention as a picture, each patch as a block."""
    times = max(1, _MAP_SIDE // max(shares.shape))
    blocks = np.kron(shares, np.ones((times, times)))[..., None]  # (H, W, 1)
    pixels = ((_COLD + blocks * (_HOT - _COLD)) / 255).transpose(2, 0, 1)
    caption = element("figcaption", element("span", title, class_="frame-title"))
    return element("figure", _image(to_png(pixels), title, (1, 1, 1)), caption, class_="frame")


def _image(png: bytes, alt: str, shape: tuple[int, ...]) -> Markup:
    kind = "pixelated" if max(shape[1:]) <= _ENLARGED else None
    source = "data:image/png;base64," + base64.b64encode(png).decode()
    return element("img", src=source, alt=alt, class_=kind, decoding="async")


def _texts(views: Texts | None, before: Markup, after: Markup, tone: str) -> Markup:
    """Both texts as one, with what was taken out and what was put in, and the two answers."""
    answers = element(
        "p",
        element("span", before, class_="answer hold"),
        " → ",
        element("span", after, class_=f"answer {tone}"),
        class_="answers",
    )
    if views is None:
        return answers
    return join(element("blockquote", _difference(views.clean, views.adversarial)), answers)


def _difference(old: str, new: str) -> Markup:
    before, after = (re.findall(r"\s+|\S+", text) for text in (old, new))
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    parts: list[Markup | str] = []
    for kind, start, stop, from_, to in matcher.get_opcodes():
        if kind == "equal":
            parts.append(_shortened("".join(before[start:stop])))
            continue
        if stop > start:
            parts.append(element("del", "".join(before[start:stop])))
        if to > from_:
            parts.append(element("ins", "".join(after[from_:to])))
    return join(*parts)


def _shortened(text: str, room: int = 160) -> str:
    """An unchanged passage: its ends, where it is long."""
    return text if len(text) <= room else f"{text[: room // 2]} … {text[-room // 2 :]}"


def _chance(probability: float) -> str:
    return f"<{NBSP}1{NBSP}%" if probability < 0.005 else f"{100 * probability:.0f}{NBSP}%"
