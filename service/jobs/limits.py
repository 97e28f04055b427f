"""What one evaluation may ask for: each rule that is broken is named with its limit."""

from collections.abc import Iterator

from robustness.attacks.base import Attack
from robustness.spec import EvaluationSpec
from service.http.errors import ApiError
from service.settings import Settings


def check_sizes(spec: EvaluationSpec, settings: Settings) -> None:
    """Refuse a spec with more attacks, points, steps, queries or directions than allowed.

    Raises:
        ApiError: 422 invalid_spec with every rule that is broken in `details`.
    """
    counts = [("attacks", "attacks", len(spec.attacks), settings.evaluation_max_attacks)]
    for index, attack in enumerate(spec.attacks):
        for field, what, count, limit in _counts(attack, settings):
            counts.append((f"attacks.{index}.{field}", what, count, limit))
    problems = [
        {"field": field, "message": f"{count} {what} are more than the {limit} allowed"}
        for field, what, count, limit in counts
        if count > limit
    ]
    if problems:
        raise spec_error(problems)


def check_classes(spec: EvaluationSpec, num_classes: int) -> None:
    """Refuse an attack that needs more classes than the model has.

    Raises:
        ApiError: 422 invalid_spec.
    """
    problems = [
        {
            "field": f"attacks.{index}.name",
            "message": f"{attack.label!r} needs at least {attack.info.min_classes} classes, "
            f"and the model has {num_classes}",
        }
        for index, attack in enumerate(spec.attacks)
        if num_classes < attack.info.min_classes
    ]
    if problems:
        raise spec_error(problems)


def check_samples(samples: int, settings: Settings, *, on_texts: bool) -> None:
    """Refuse more inputs than allowed.

    Raises:
        ApiError: 422 too_many_images or too_many_texts.
    """
    limit, what = settings.evaluation_max_samples, "texts" if on_texts else "images"
    if samples > limit:
        message = f"{samples} {what} are more than the {limit} allowed."
        raise ApiError(422, f"too_many_{what}", message, {"limit": limit})


def check_cost(evaluations: int, settings: Settings) -> None:
    """Refuse an evaluation that takes more model evaluations than allowed.

    Raises:
        ApiError: 422 too_expensive.
    """
    limit = settings.evaluation_max_cost
    if evaluations > limit:
        message = (
            f"The evaluation takes up to {evaluations:,} model evaluations, more than the "
            f"{limit:,} allowed; send fewer inputs, attacks, points, steps, queries or samples."
        )
        raise ApiError(
            422, "too_expensive", message, {"model_evaluations": evaluations, "limit": limit}
        )


def spec_error(problems: list[dict[str, str]]) -> ApiError:
    """The refusal of a spec.

    Args:
        problems: for each rule that is broken the field, with dots, and what is wrong with it.
    """
    first = problems[0]
    place = f"{first['field']}: " if first["field"] else ""
    message = f"The spec is not acceptable: {place}{first['message']}."
    return ApiError(422, "invalid_spec", message, problems)


def _counts(attack: Attack, settings: Settings) -> Iterator[tuple[str, str, int, int]]:
    field = attack.info.budget
    what = "radii" if attack.info.norms else "values"
    if attack.info.role != "corruption":  # there are few
        yield field, what, len(attack.budgets()), settings.evaluation_max_eps
    limits = {
        "steps": settings.evaluation_max_steps,
        "queries": settings.evaluation_max_queries,
        "directions": settings.evaluation_max_directions,
    }
    for field, (what, count) in attack.sizes().items():
        yield field, what, count, limits[what]
