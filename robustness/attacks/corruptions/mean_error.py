"""How much worse corruptions make a model than a reference."""

from collections.abc import Mapping, Sequence


def mean_corruption_error(
    errors: Mapping[str, Sequence[float]], reference_errors: Mapping[str, Sequence[float]]
) -> float:
    """Mean over corruptions of a model's error, summed over severities, over that of a reference.

    Args:
        errors: for each corruption the share of wrong answers at each severity.
        reference_errors: the same of the reference, for the same corruptions and severities.

    Returns:
        1 if the model is as bad as the reference. (The paper writes it in percent.)

    Raises:
        ValueError: different corruptions or severities, none at all, or a reference without error.

    Source: Hendrycks & Dietterich 2019, section 4.1; there AlexNet is the reference.
    """
    if not errors or errors.keys() != reference_errors.keys():
        raise ValueError(
            "errors and reference_errors must name the same corruptions, at least one, "
            f"got {sorted(errors)} and {sorted(reference_errors)}"
        )
    ratios = [_ratio(name, errors[name], reference_errors[name]) for name in errors]
    return sum(ratios) / len(ratios)


def _ratio(name: str, own: Sequence[float], reference: Sequence[float]) -> float:
    if len(own) != len(reference):
        raise ValueError(
            f"errors of {name!r} must have as many severities as the reference's {len(reference)}, "
            f"got {len(own)}"
        )
    if sum(reference) <= 0:
        raise ValueError(f"reference_errors of {name!r} must not be all 0, got {list(reference)}")
    return sum(own) / sum(reference)
