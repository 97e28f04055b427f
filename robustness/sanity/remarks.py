"""What a reader must know to read the figures, though nothing is wrong with them."""

from collections.abc import Iterator, Sequence

from robustness.scoring import ModelVerdict
from robustness.spec import EvaluationSpec
from robustness.worst import attacked


def notes(spec: EvaluationSpec, verdicts: Sequence[ModelVerdict]) -> list[str]:
    """What a reader must know to read the figures, though nothing is wrong with them."""
    num_classes = len(verdicts[0].target.labels)
    found = [*_of_attacks(spec, num_classes)]
    for verdict in verdicts:
        found += _of_gradients_through_m(spec, verdict)
    dropped = [k for k in spec.top_k if k >= num_classes]
    if dropped:
        found.append(f"top-k for k in {dropped} is left out: with {num_classes} classes it is 1.")
    return found


def _of_attacks(spec: EvaluationSpec, num_classes: int) -> Iterator[str]:
    facts = [attack.info for attack in spec.attacks if attack.info.role == "attack"]
    if facts:
        yield "Every robust accuracy is an upper bound: a stronger attack can only lower it."
    if facts and all(info.follows == "cross-entropy" for info in facts):
        yield (
            "All attacks follow the cross-entropy; where scores saturate, attacks with another "
            "loss or without gradients find more. Autoattack has both."
        )
    if facts and all(info.single_step for info in facts):
        yield "Only FGSM was run. One step is a weak attack; add pgd before relying on it."
    for attack in spec.attacks:
        yield from attack.notes(num_classes)


def _of_gradients_through_m(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[str]:
    """By how much a figure were too high, had gradients been stopped at m alone."""
    for cell, one in attacked(spec, verdict):
        if len(one.by_variant) < 2:
            continue
        stopped, full = (one.by_variant == 0).sum(axis=1)
        worst = int((one.robust == 0).sum())
        if full < stopped:
            name = f"{verdict.target.name}, {cell.attack.label} at {cell.budget.text}"
            yield (
                f"{name}: with gradients stopped at m, the metric of elliptical attention, "
                f"{stopped} of {len(one.robust)} hold; with gradients through m {full}; under the "
                f"worse of both, which is what counts here, {worst}. Stopped alone, the figure "
                "would have been too high."
            )
