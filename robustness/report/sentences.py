"""The sentences of a report, written here once and stored in it for whatever shows it."""

from core.names import listed
from core.percent import hundredths
from data.labels import ClassMap
from robustness.attacks.space import is_replication
from robustness.report.schema import (
    AttackFigures,
    BracketFigures,
    CertificateFigures,
    Comparison,
    Contradiction,
    Data,
    Figure,
    ModelFigures,
    Pair,
    Summary,
)
from robustness.spec import ATTACKS, EvaluationSpec

NBSP = "\u00a0"
FEW = 200  # samples below which a decimal of a percentage says nothing
WIDE = 0.08  # width of an interval that is worth a warning
SIGNIFICANT = 0.05
CLASSES = 10  # in a sentence
INTERVAL = f"95{NBSP}% interval"

STABILITY = (
    "No labels were given: the model’s own predictions stand in. The figures say how stable they "
    "are, not whether they are correct."
)
_MEANINGS = {
    "Linf": "Within {eps} an attack may change every pixel by at most {levels:.3g} of its 255 "
    "levels of brightness.",
    "L2": "Within {eps} (l2) the squares of all changes, with pixels from 0 to 1, may add up to at "
    "most {value:.3g}²: much at few pixels, or little at many.",
    "L1": "Within {eps} (l1) the sizes of all changes, with pixels from 0 to 1, may add up to at "
    "most {value:.3g}.",
    "L0": "With {eps} an attack may change that many pixels of an image as it likes.",
    "patch": "Anything may stand in one square of {eps} pixels a side, wherever it lies.",
    "rate": "At a rate of {eps} that share of the words is replaced.",
    "edits": "With {eps} an attack may change that many words, tokens or characters of a text.",
}


def percent(share: float | None, samples: int) -> str:
    """A share in [0, 1] as percent; one decimal where enough samples stand behind it."""
    if share is None:
        return "–"
    return f"{hundredths(share, _digits(samples))}{NBSP}%"


def chance(probability: float) -> str:
    """A probability as percent; a small one is not shown as none."""
    return f"<{NBSP}1{NBSP}%" if probability < 0.005 else percent(probability, 0)


def measured(value: float, ci: tuple[float, float] | None) -> str:
    """A perplexity, or a ratio of two, with its interval if any, "4.32 (4.21 to 4.44)"."""
    found, *ends = [f"{one:.2f}" if one >= 2 else f"{one:.3f}" for one in (value, *(ci or ()))]
    return f"{found} ({' to '.join(ends)})" if ends else found


def interval(ci: tuple[float, float], samples: int) -> str:
    """Both ends of an interval, "62–81 %"."""
    low, high = (hundredths(end, _digits(samples)) for end in ci)
    return f"{low}–{high}{NBSP}%"


def points(pair: Pair) -> str:
    """The difference of a pair with its interval, "+57.0 points (+47.2 to +66.3)"."""
    low, high = map(signed, pair.ci)
    return f"{signed(pair.difference)} points ({low} to {high})"


def signed(difference: float) -> str:
    """A difference of shares in points of percent, with its sign."""
    return f"{'' if difference < 0 else '+'}{hundredths(difference, 1)}"


def p_value(pair: Pair) -> str:
    """The p-value of a pair, "p < 0.001" or "p = 0.03"."""
    return "p < 0.001" if pair.p_value < 0.001 else f"p = {pair.p_value:.2g}"


def count(number: int, one: str) -> str:
    """A number of things, "1 image" or "1,200 images"."""
    return f"{number:,} {one}{'s' * (number != 1)}"


def ends(spec: EvaluationSpec) -> str:
    """What the ends beside an accuracy are."""
    return f"95{NBSP}% confidence sequence" if spec.stop == "early" else INTERVAL


def at_budget(model: ModelFigures, name: str) -> AttackFigures:
    """One attack with the budget that `worst` calls by that name."""
    return next(attack for attack in model.attacks if attack.budget == name)


def at_largest(model: ModelFigures) -> str:
    """The largest budgets as part of a sentence, "within 8/255 or within 0.5 (l2)"."""
    return " or ".join(attack.description for attack in _largest(model))


def _largest(model: ModelFigures) -> list[AttackFigures]:
    """One attack with the largest budget of each kind."""
    ascending = [at_budget(model, name) for name in model.worst]
    return list({attack.kind: attack for attack in ascending}.values())


def of_attack(attack: AttackFigures, samples: int, metric: str, ends: str) -> str:
    """What one attack with one budget leaves, in one sentence."""
    share = percent(attack.robust.top1, samples)
    kept = "keeps its prediction on" if metric == "stability" else "is correct on"
    inside, inputs = interval(attack.robust.ci, samples), count(samples, "input")
    if attack.robust.mean_iou is not None:
        inputs = f"the pixels of {count(samples, 'image')}"
        ends = f"mean IoU {percent(attack.robust.mean_iou, samples)}; {ends}"
    if (perplexity := attack.robust.perplexity) is not None:
        right = f"{share} of the tokens of {count(samples, 'text')} ({ends} {inside})"
        return (
            f"Under {attack.title} {attack.description} the perplexity is "
            f"{measured(perplexity, attack.robust.perplexity_ci)}, {_times(attack.robust)}; the "
            f"model predicts {right} right."
        )
    again = f"; {percent(attack.confirmed, samples)} as served"
    if attack.confirmed_8bit is not None:
        again += f", {percent(attack.confirmed_8bit, samples)} in 8 bit"
    if attack.parts:
        misled = ", ".join(f"{part.title} {part.misled:,}" for part in attack.parts)
        again += f". Misled by its parts in turn: {misled}"
    under = f"Under {attack.title} {attack.description} the model {kept} {share}"
    return f"{under} of {inputs} ({ends} {inside}){again}."


def _times(figure: Figure) -> str:
    """How high a perplexity is beside that of the unchanged texts."""
    return f"{measured(figure.ratio or 1.0, figure.ratio_ci)} times as high"


def at_proved(model: ModelFigures) -> str:
    """The largest budgets of proofs as part of a sentence, "with 10 pieces replaced"."""
    return " or ".join(one.description for one in _largest_brackets(model))


def _largest_brackets(model: ModelFigures) -> list[BracketFigures]:
    ascending = sorted(model.brackets, key=lambda one: one.eps_value)
    return list({(one.name, one.kind): one for one in ascending}.values())


def of_bracket(found: BracketFigures, samples: int, ends: str) -> str:
    """What attacks and a proof leave open in one set of changes, in one sentence."""
    proved, robust = found.proved_accuracy, found.robust_accuracy
    shares = (
        f"proved accuracy {percent(proved.top1, samples)} ({ends} "
        f"{interval(proved.ci, samples)}), robust accuracy {percent(robust.top1, samples)} "
        f"({interval(robust.ci, samples)})"
    )
    tried = f"under {', '.join(found.attacks)}" if found.attacks else "without an attack of the set"
    by = " and ".join(one if one == "exact" else f"by {one}" for one in found.methods)
    return (
        f"{found.description[0].upper()}{found.description[1:]}, of {count(samples, 'input')} "
        f"{found.broken:,} broken, {found.proved:,} proved{f' ({by})' * bool(by)}, "
        f"{found.open:,} open: {shares} {tried}."
    )


def of_contradiction(found: Contradiction, bracket: str, method: str, by: str, label: str) -> str:
    """What a proof says of an input, and what is true of it, in one sentence.

    Args:
        found: both witnesses.
        bracket: the set of changes, as part of a sentence.
        method: of the proof.
        by: the attack and its budget, empty where the unchanged input is misclassified.
        label: what the served model answers.
    """
    way = method if method == "exact" else f"by {method}"
    at = f" at {'tokens' if found.pieces else 'patches'} {', '.join(map(str, found.places))}"
    misled = f"{by} misleads the model" if by else "it is wrong unchanged"
    return (
        f"The proof of sample {found.sample} does not hold. It says: {bracket} a margin of "
        f"{found.margin:.3g} is left in the worst case{at * bool(found.places)} ({way}; rounding "
        f"takes {found.rounding:.1g} at most). But {misled}: as served the answer is “{label}”."
    )


def of_certificate(found: CertificateFigures, samples: int) -> str:
    """What randomized smoothing proves at some radius, in a line."""
    first = found.curve[0]
    ends = interval(first.ci, samples)
    return f"provably correct on {percent(first.share, samples)}, 95{NBSP}% interval {ends}"


def of_figure(figure: Figure, samples: int, metric: str) -> str:
    """An accuracy with its interval, in a line."""
    share, ends = percent(figure.top1, samples), interval(figure.ci, samples)
    iou = "" if figure.mean_iou is None else f", {_iou(figure, samples)}"
    if figure.perplexity is not None:
        iou = f", perplexity {measured(figure.perplexity, figure.perplexity_ci)}"
    return f"{metric} {share}, 95{NBSP}% interval {ends}{iou}, {samples:,} samples"


def outcome(model: ModelFigures) -> str:
    """Accuracy before and under what was tried, "90 % → 43 %"; of a language model perplexity."""
    if model.clean.perplexity is not None:
        found = [model.clean, *([model.largest] if model.largest else [])]
        return " → ".join(measured(one.perplexity or 1.0, None) for one in found)
    clean, left = percent(model.clean.top1, model.samples), _left(model)
    return clean if left is None else f"{clean} → {percent(left, model.samples)}"


def _left(model: ModelFigures) -> float | None:
    if model.largest is not None:
        return model.largest.top1
    if model.corrupted is not None:
        return model.corrupted.top1
    if model.certificates:
        return model.certificates[0].curve[0].share
    return None if model.proved is None else model.proved.top1


def data(found: Data, metric: str, class_map: ClassMap | None) -> str:
    """What was evaluated: how many inputs, of which set, split and source, and their classes."""
    name = f" of “{found.name}”" if found.name else ""
    details = [f"split {found.split}"] if found.split else []
    if found.source not in (None, found.name, found.split):
        details.append(f"{found.source}")
    inside = f" ({', '.join(details)})" if details else ""
    classes = _classes(found, metric, class_map)
    return f"Data: {count(found.samples, found.kind)}{name}{inside}, {classes}."


def early_stop(found: Data) -> str | None:
    """How many inputs an evaluation used that stops when its gate is decided; None of others."""
    if found.given is None:
        return None
    used = f"The gate was decided after {found.samples:,} of {count(found.given, found.kind)}"
    if found.samples == found.given:
        used = f"It took all {count(found.given, found.kind)}"
    return (
        f"{used}, in a random order. Every interval is a confidence sequence, which holds at "
        "whatever input one stops."
    )


def _classes(found: Data, metric: str, class_map: ClassMap | None) -> str:
    own, labels = listed(found.classes or [], CLASSES), listed(found.labels, CLASSES)
    if metric == "token accuracy":
        return "whose next tokens are predicted"
    if metric == "stability":
        return f"without labels; classes of the model: {labels}"
    if found.classes is None:
        return f"labelled by index alone, as if their classes were the model’s: {labels}"
    if class_map == "index":
        return f"classes {own}, taken by index for the model’s: {labels}"
    if class_map is not None:
        pairs = listed([f"{one} as {other}" for one, other in class_map.items()], CLASSES)
        return f"classes {own}, some under the model’s names: {pairs}"
    return f"in {len(found.classes)} classes: {own}"


def headline(model: ModelFigures, metric: str, kind: str, ends: str = INTERVAL) -> str:
    """The result of one model in one sentence or two.

    Args:
        model: its figures.
        metric: "accuracy" or "stability".
        kind: "image" or "text".
        ends: what the ends beside an accuracy are, see `ends`.
    """
    if model.clean.mean_iou is not None:
        return _pixels(model, metric)
    if model.clean.perplexity is not None:
        return _tokens(model)
    if metric == "stability":
        return _stability(model, kind, ends)
    right = _hits(model.clean, model.samples)
    known = f"all {count(right, kind)}" if right == model.samples else f"{right:,} of "
    known += "" if right == model.samples else count(model.samples, kind)
    start = f"{model.name} classifies {known} correctly."
    if model.largest is None:
        return f"{start} {_without_budget(model, metric, ends)}"
    left = _hits(model.largest, model.samples)
    stays = "none" if not left else "all of them" if left == right else f"{left:,}"
    remain = "remains" if left == 1 and left != right else "remain"
    return f"{start} Under the worst attack {at_largest(model)}, {stays} {remain} correct."


def _pixels(model: ModelFigures, metric: str) -> str:
    """The result of a segmenter."""
    right, remain = ("right", "remain right")
    if metric == "stability":
        right, remain = ("compared with its own answer", "keep their class")
    start = (
        f"{model.name} is {right} on {percent(model.clean.top1, model.samples)} of the pixels of "
        f"{count(model.samples, 'image')} ({_iou(model.clean, model.samples)})."
    )
    if model.largest is None:
        return f"{start} No attack was run."
    left = percent(model.largest.top1, model.samples)
    iou = _iou(model.largest, model.samples)
    return f"{start} Under the worst attack {at_largest(model)}, {left} {remain} ({iou})."


def _tokens(model: ModelFigures) -> str:
    """The result of a language model."""
    clean, largest = model.clean, model.largest
    start = (
        f"{model.name} has a perplexity of {measured(clean.perplexity or 1.0, clean.perplexity_ci)}"
        f" by token on {count(model.samples, 'text')}."
    )
    if largest is None:
        return f"{start} No attack was run."
    return (
        f"{start} Under Word Swap {at_largest(model)} it is "
        f"{measured(largest.perplexity or 1.0, largest.perplexity_ci)}, {_times(largest)}."
    )


def _iou(figure: Figure, samples: int) -> str:
    return f"mean IoU {percent(figure.mean_iou, samples)}"


def _stability(model: ModelFigures, kind: str, ends: str) -> str:
    if model.largest is None:
        start = f"{model.name} was evaluated on {count(model.samples, kind)} without labels."
        return f"{start} {_without_budget(model, 'stability', ends)}"
    left = _hits(model.largest, model.samples)
    kept = "all" if left == model.samples else f"{left:,}" if left else "none"
    answers = count(model.samples, "prediction")
    return f"{model.name} keeps {kept} of its {answers} under the worst attack {at_largest(model)}."


def _without_budget(model: ModelFigures, metric: str, ends: str) -> str:
    found = [say(model, metric, ends) for say in (_corrupted, _certified, _proved)]
    return " ".join(one for one in found if one) or "No attack was run."


def _corrupted(model: ModelFigures, metric: str, ends: str) -> str | None:
    """What common corruptions leave."""
    if model.corrupted is None:
        return None
    share = percent(model.corrupted.top1, model.samples)
    ends += f" {interval(model.corrupted.ci, model.samples)}"
    if metric == "stability":
        return f"Under common corruptions it keeps {share} of its predictions on average ({ends})."
    return f"Under common corruptions {share} are classified correctly on average ({ends})."


def _certified(model: ModelFigures, metric: str, ends: str) -> str | None:
    """What randomized smoothing proves, with the first sigma."""
    if not model.certificates:
        return None
    one = model.certificates[0]
    first = one.curve[0]
    share, ends = percent(first.share, model.samples), f"{ends} {interval(first.ci, model.samples)}"
    right = "unchanged" if metric == "stability" else "correct"
    radius = max((point.radius for point in one.curve if point.share), default=0.0)
    return (
        f"Smoothed with sigma {one.sigma}, {share} of the predictions are provably {right} "
        f"({ends}), the last of them up to an l2 radius of {radius:.2f}."
    )


def _proved(model: ModelFigures, metric: str, ends: str) -> str | None:
    """What is proved at the largest budgets."""
    if model.proved is None:
        return None
    share, right = percent(model.proved.top1, model.samples), "correct"
    if metric == "stability":
        right = "unchanged"
    ends += f" {interval(model.proved.ci, model.samples)}"
    return f"It is proved to stay {right} on {share} {at_proved(model)} ({ends})."


def findings(model: ModelFigures, metric: str, kind: str, ends: str = INTERVAL) -> list[str]:
    """What else there is to say about the evaluated model, after its headline."""
    found = [
        STABILITY if metric == "stability" else None,
        *map(_meaning, _largest(model)),
        _width(model, kind),
        _confirmation(model, kind),
    ]
    if model.largest is not None:
        found += [say(model, metric, ends) for say in (_corrupted, _certified, _proved)]
    found += [one.finding for one in model.brackets]
    return [one for one in found if one]


def _meaning(attack: AttackFigures) -> str | None:
    """What a budget lets an attack do."""
    meaning = _MEANINGS.get(attack.kind)
    value, counted = attack.eps_value, {"edits": "edit", "L0": "pixel"}.get(attack.kind)
    eps = attack.eps if counted is None else count(int(value), counted)
    return meaning and meaning.format(eps=eps, value=value, levels=255 * value)


def _width(model: ModelFigures, kind: str) -> str | None:
    """What so few samples leave open; None where there are enough, or the sentence says it."""
    largest = model.largest
    if largest is None or largest.perplexity is not None or largest.ci[1] - largest.ci[0] < WIDE:
        return None
    low, high = (percent(end, model.samples) for end in largest.ci)
    return (
        f"With {count(model.samples, kind)}, the true share under the worst attack may lie "
        f"anywhere from {low} to {high}; more {kind}s narrow this down."
    )


def _confirmation(model: ModelFigures, kind: str) -> str | None:
    """What became of the attacks' successes on the served model, and in 8 bit; None without any.

    Nothing is said of the served model where every attack asks that one itself.
    """
    attacks = [one for one in model.attacks if not is_replication(one.name)]
    searched = all(_asks_served(attack) for attack in attacks)
    if not attacks or (searched and kind == "text"):
        return None
    successes = sum(attack.successes for attack in attacks)
    served = sum(attack.served_successes for attack in attacks)
    only = sum(attack.served_only for attack in attacks)
    alone = f" Another {only:,} mislead the served model alone." if only else ""
    if not successes:
        return "No attack succeeded, so there was nothing to confirm." + alone
    runs = "1 successful attack" if successes == 1 else f"{successes:,} successful attacks"
    part = f"Of {runs} on single {kind}s,"
    also = f"{part} {_part(served, successes)} also {_mislead(served)} the served model"
    if kind == "text":
        return f"{also}.{alone}"
    png = sum(attack.png_successes or 0 for attack in attacks)
    if searched:
        return (
            f"{part} {_part(png, successes)} still {_mislead(png)} the model when written as an "
            f"8-bit PNG.{alone}"
        )
    still = "does" if png == 1 else "do"
    return f"{also} and {_part(png, successes)} still {still} when written as an 8-bit PNG.{alone}"


def _asks_served(attack: AttackFigures) -> bool:
    """Whether an attack searches on the served model, not with gradients of the PyTorch model."""
    return ATTACKS[attack.name.partition(":")[0]].info.access != "gradient"


def _part(number: int, whole: int) -> str:
    return "all" if number == whole > 1 else "none" if not number else f"{number:,}"


def _mislead(number: int) -> str:
    return "misleads" if number == 1 else "mislead"


def comparison(summary_models: list[ModelFigures], other: Comparison, metric: str) -> str:
    """The second model beside the first."""
    first, second = summary_models[:2]
    pair = other.largest or other.clean
    where = f"under the worst attack {at_largest(first)}" if other.largest else "without attack"
    share = percent(pair.second, second.samples)
    if pair.perplexity is not None:
        return _perplexities(first, second, pair, where)
    start = f"{second.name} reaches {share} {where}"
    if not pair.only_first and not pair.only_second:
        found = f"{start}: no difference."
    else:
        name = "exact McNemar test" if first.clean.mean_iou is None else "sign test over images"
        test = f"difference {points(pair)}, {name}, {p_value(pair)}"
        better = first.name if pair.difference > 0 else second.name
        found = f"{start}. A difference this small may be chance ({test})."
        if pair.difference and pair.p_value < SIGNIFICANT:
            found = f"{start}. {better} is better by more than chance explains ({test})."
    noise = None if other.largest else _corrupted(second, metric, INTERVAL)
    return found if noise is None else f"{found} {second.name}: {noise[0].lower()}{noise[1:]}"


def _perplexities(first: ModelFigures, second: ModelFigures, pair: Pair, where: str) -> str:
    """Two language models on the same texts."""
    low, high = pair.perplexity_ci or (1.0, 1.0)
    times = f"{measured(pair.perplexity or 1.0, pair.perplexity_ci)} times that of {second.name}"
    start = f"{where[0].upper()}{where[1:]} the perplexity of {first.name} is {times}"
    if low <= 1 <= high:
        return f"{start}: a difference this small may be chance ({INTERVAL} of the bootstrap)."
    better = first.name if high < 1 else second.name
    return f"{start}. {better} is better by more than chance explains ({INTERVAL})."


def gate(text: str, reason: str, *, passed: bool) -> str:
    """Whether a gate held, and why."""
    return f"Gate {text}: {'held' if passed else 'failed'} ({reason})."


def lines(summary: Summary) -> list[str]:
    """Headline, findings and comparison: what every form of a report says first."""
    other = summary.comparison
    return [summary.headline, *summary.findings, *([other.finding] if other else [])]


def _hits(figure: Figure, samples: int) -> int:
    return round(figure.top1 * samples)


def _digits(samples: int) -> int:
    return 1 if samples >= FEW else 0
