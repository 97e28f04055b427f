"""What a reader must know to read the figures, though nothing is wrong with them."""

from collections.abc import Iterator, Sequence

from scipy.stats import norm

from robustness.attack_spec import AttackSpec
from robustness.sanity.case import cannot_cross
from robustness.scoring import ModelVerdict
from robustness.spec import EvaluationSpec
from robustness.worst import attacked


def notes(spec: EvaluationSpec, verdicts: Sequence[ModelVerdict]) -> list[str]:
    """What a reader must know to read the figures, though nothing is wrong with them."""
    num_classes = len(verdicts[0].target.labels)
    found = [*_of_attacks(spec, num_classes), *_of_noise(spec)]
    for verdict in verdicts:
        found += _of_gradients_through_m(spec, verdict)
    dropped = [k for k in spec.top_k if k >= num_classes]
    if dropped:
        found.append(f"top-k for k in {dropped} is left out: with {num_classes} classes it is 1.")
    return found


def _of_attacks(spec: EvaluationSpec, num_classes: int) -> Iterator[str]:
    names = {attack.name for attack in spec.attacks if attack.kind.norms or attack.kind.on_texts}
    if names:
        yield "Every robust accuracy is an upper bound: a stronger attack can only lower it."
    if names and names <= {"fgsm", "pgd", "apgd-ce"}:
        yield (
            "All attacks follow the cross-entropy; where scores saturate, attacks with another "
            "loss or without gradients find more. Autoattack has both."
        )
    if names == {"fgsm"}:
        yield "Only FGSM was run. One step is a weak attack; add pgd before relying on it."
    if "autoattack" in names and num_classes < 4:
        yield (
            f"With {num_classes} classes AutoAttack runs without APGD-T, whose loss compares four "
            "logits."
        )
    for cell in spec.cells:
        if cannot_cross(cell):
            yield f"pgd at eps {cell.point} cannot cross its ball: steps x alpha < 2 eps."


def _of_noise(spec: EvaluationSpec) -> Iterator[str]:
    for attack in spec.attacks:
        if attack.name == "smoothing":
            yield _of_smoothing(attack)
        elif attack.name == "corruptions" and not _is_imagenet_c(attack):
            yield (
                "mCE here is over the corruptions and severities asked for, not over the 15 at 5 "
                "severities of ImageNet-C: it stands beside no published figure."
            )


def _of_smoothing(attack: AttackSpec) -> str:
    """How far certificates can reach with so many noisy copies, were all of them answered alike."""
    samples, alpha = attack.setting("samples"), float(attack.setting("alpha"))
    reach = float(norm.ppf(alpha ** (1 / samples)))
    return (
        f"Smoothing with {samples:,} noisy copies cannot certify a radius above {reach:.2f} sigma; "
        "100,000 copies, as in the paper, reach 3.81 at alpha 0.001."
    )


def _is_imagenet_c(attack: AttackSpec) -> bool:
    return set(attack.points) == set(AttackSpec(name="corruptions").points)


def _of_gradients_through_m(spec: EvaluationSpec, verdict: ModelVerdict) -> Iterator[str]:
    """By how much a figure were too high, had gradients been stopped at m alone."""
    for cell, one in attacked(spec, verdict):
        if len(one.by_variant) < 2:
            continue
        stopped, full = (one.by_variant == 0).sum(axis=1)
        worst = int((one.robust == 0).sum())
        if full < stopped:
            name = f"{verdict.target.name}, {cell.attack.name} at {cell.point}"
            yield (
                f"{name}: with gradients stopped at m, the metric of elliptical attention, "
                f"{stopped} of {len(one.robust)} hold; with gradients through m {full}; under the "
                f"worse of both, which is what counts here, {worst}. Stopped alone, the figure "
                "would have been too high."
            )
