"""Figures and findings in plain words, for readers who never saw an adversarial example."""

from robustness.report.figures import AttackFigures, Figure, ModelFigures, Pair, Summary

NBSP = "\u00a0"
FEW = 200  # samples below which a decimal of a percentage says nothing
WIDE = 0.08  # width of an interval that is worth a warning


def percent(share: float | None, samples: int) -> str:
    """A share in [0, 1] as percent; one decimal where enough samples stand behind it."""
    if share is None:
        return "–"
    return f"{100 * share:.{_digits(samples)}f}{NBSP}%"


def interval(ci: tuple[float, float], samples: int) -> str:
    """Both ends of an interval, "62–81 %"."""
    low, high = (f"{100 * end:.{_digits(samples)}f}" for end in ci)
    return f"{low}–{high}{NBSP}%"


def count(number: int, one: str) -> str:
    """A number of things, "1 image" or "1,200 images"."""
    return f"{number:,} {one}{'s' * (number != 1)}"


def largest(model: ModelFigures) -> list[AttackFigures]:
    """One attack with the largest budget of each kind: l-infinity, l2, rates, edits."""
    found: dict[str, AttackFigures] = {}
    for name in model.worst:  # ascending within each kind
        attack = at_budget(model, name)
        found[budget_kind(attack)] = attack
    return list(found.values())


def budget_kind(attack: AttackFigures) -> str:
    """What an attack's budget counts: "Linf", "L2", "rate" or "edits"."""
    return attack.norm or ("rate" if attack.name == "word-swap" else "edits")


def at_budget(model: ModelFigures, name: str) -> AttackFigures:
    """One attack with the budget that `worst` calls by that name."""
    return next(attack for attack in model.attacks if attack.budget == name)


def headline(model: ModelFigures, metric: str, one: str) -> str:
    """The verdict on the model on trial in one sentence or two."""
    samples, worst = model.samples, model.largest
    right = _hits(model.clean, samples)
    start = f"all {count(samples, one)}" if right == samples else f"{right:,} of {samples:,} {one}s"
    if worst is None:
        return f"{model.name} names {start} correctly. No adversarial attack was asked for."
    left = _hits(worst, samples)
    under = f"under the worst attack {at_largest(model)}"
    if metric == "stability":
        kept = "every one" if left == samples else f"{left:,}" if left else "none"
        return f"{model.name} keeps {kept} of its {count(samples, 'answer')} {under}."
    stays = "none" if not left else "all of them" if left == right else f"{left:,}"
    are = "is" if stays == "1" else "are"
    return f"{model.name} names {start} correctly. U{under[1:]}, {stays} {are} left."


def within(attack: AttackFigures) -> str:
    """The budget of an attack as part of a sentence, "within 8/255" or "with 5 edits"."""
    if attack.norm is not None:
        return f"within {attack.eps}{' (l2)' if attack.norm == 'L2' else ''}"
    if attack.name == "word-swap":
        return f"at a rate of {attack.eps}"
    return f"with {attack.eps} edit{'s' * (attack.eps != '1')}"


def at_largest(model: ModelFigures) -> str:
    """The largest budgets as part of a sentence, "within 8/255 or within 0.5 (l2)"."""
    return " or ".join(map(within, largest(model)))


def meanings(model: ModelFigures) -> list[str]:
    """What the largest budgets let an attacker do."""
    return list(map(_meaning, largest(model)))


def _meaning(attack: AttackFigures) -> str:
    if attack.norm == "Linf":
        levels = f"{255 * attack.eps_value:.3g}"
        return (
            f"Within {attack.eps} an attacker may move every pixel by at most {levels} of its 255 "
            "levels of brightness; the pictures below show how little that is."
        )
    if attack.norm == "L2":
        return (
            f"Within {attack.eps} (l2) the squares of all changes, with pixels from 0 to 1, may "
            f"add up to at most {attack.eps_value:.3g}²: much at few pixels, or little at many."
        )
    if attack.name == "word-swap":
        return f"At a rate of {attack.eps} that share of the words becomes “AAA”."
    return f"An attacker may change up to {attack.eps} places of a text; the texts below show them."


def doubtful_width(model: ModelFigures, one: str) -> str | None:
    """What so few samples leave open; None where there are enough."""
    ci = (model.largest or model.clean).ci
    if ci[1] - ci[0] < WIDE:
        return None
    return (
        f"With {count(model.samples, one)}, the true share may lie anywhere from "
        f"{percent(ci[0], model.samples)} to {percent(ci[1], model.samples)}."
    )


def gap(model: ModelFigures) -> str | None:
    """What became of the attacks' successes on the model as served."""
    if not model.attacks:
        return None
    gaps = [attack.transfer_gap for attack in model.attacks]
    widest = max(gaps, key=abs)
    judged = "Successes were judged again on the model as it is served: there "
    if widest == 0:
        return f"{judged}the figures are the same."
    more = "more samples hold" if widest > 0 else "fewer samples hold"
    share = percent(abs(widest), model.samples)
    return f"{judged}up to {share} {more} than on its differentiable twin."


def rivalry(summary: Summary) -> str | None:
    """The second model in one sentence."""
    other, first = summary.comparison, summary.models[0]
    if other is None:
        return None
    pair = other.largest or other.clean
    where = f"under the worst attack {at_largest(first)}" if other.largest else "unattacked"
    left = f"{other.second} gets {percent(pair.second, first.samples)} {where}"
    if not pair.only_first and not pair.only_second:
        return f"{left}: no difference."
    better = other.first if pair.difference > 0 else other.second
    if pair.difference and pair.p_value < 0.05:
        return f"{left}. That {better} holds better is more than chance explains ({test(pair)})."
    return f"{left}. So small a difference may be chance ({test(pair)})."


def test(pair: Pair) -> str:
    """The exact McNemar test of a pair, with its power."""
    p = "p < 0.001" if pair.p_value < 0.001 else f"p = {pair.p_value:.2g}"
    return f"exact McNemar test, {p}; power {100 * pair.power:.0f}{NBSP}%"


def _hits(figure: Figure, samples: int) -> int:
    return round(figure.top1 * samples)


def _digits(samples: int) -> int:
    return 1 if samples >= FEW else 0
