"""The samples of a report side by side: as they were, what was changed, as the attack left them."""

import base64
import difflib
import re
from collections.abc import Sequence

import numpy as np

from data.images import to_png
from robustness.report.examples import Example, Pixels, Texts
from robustness.report.markup import Markup, element, join, named
from robustness.report.pictures import amplified
from robustness.report.sentences import NBSP

_OUTCOMES = {"fallen": "misled", "held": "held"}
_ENLARGED = 64  # pictures up to this size are shown with hard pixels
_MAP_SIDE = 96  # pixels of a drawn map of attention, about
_COLD, _HOT = np.array([10, 16, 20]), np.array([88, 210, 218])


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
