"""One judged text: as it was, and as an attack left it. Needs no torch."""

from pathlib import Path
from typing import Any

from robustness.report.flags import AttackFlags
from robustness.report.lookup import NoSuchSample, choose_attack, find_sample, model_position
from robustness.report.stored import InputLost, adversarial_input, cell_of, clean_input
from robustness.spec import EvaluationSpec


def changed_text(
    folder: Path,
    index: int,
    *,
    attack: str | None = None,
    eps: str | None = None,
    model: str | None = None,
) -> dict[str, Any]:
    """A text of a finished evaluation, before and after an attack, with the model's answers.

    Args:
        folder: what `robustness.evaluation.evaluate` left behind.
        index: which text.
        attack: name of the attack; see `choose_attack`.
        eps: where it ran, a rate or a number of edits.
        model: name of the model; the one on trial when not given.

    Returns:
        JSON values: index, name, label and model; `clean` and `adversarial`, each with its `text`
        and the flags of the report.

    Raises:
        NoSuchSample: there is no such text; the message names the argument.
    """
    report = find_sample(folder, index, "text")
    sample = report["sample"]
    position = model_position(sample, model)
    flags = choose_attack(sample["models"][position]["attacks"], attack, eps)
    parsed = AttackFlags.model_validate(flags)
    cell = cell_of(EvaluationSpec.model_validate(report["spec"]), parsed)
    digest = report["summary"]["models"][position]["digest"]
    try:
        before = clean_input(folder, digest, index)
        after = adversarial_input(
            folder, digest, index, cell=cell, part=parsed.part, variant=parsed.variant
        )
    except InputLost as error:
        raise NoSuchSample(str(error)) from None
    judged = sample["models"][position]
    return {
        "index": index,
        "name": sample["name"],
        "label": sample["label"],
        "model": judged["name"],
        "clean": {"text": before, **judged["clean"]},
        "adversarial": {"text": after, **flags},
    }
