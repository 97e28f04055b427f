"""Whether a report has a flag for everything that it speaks of."""

from robustness.report.schema import DEFINITIONS, ModelFlags, Report, Sample
from robustness.store import SHARD_SIZE
from robustness.verify.outcome import Refuted


def check_shape(report: Report) -> None:
    """Check that samples, models, attacks and classes are as many as the report says.

    Raises:
        Refuted: some are missing, out of order or too many.
    """
    if report.data.samples != len(report.samples):
        told, found = report.data.samples, len(report.samples)
        raise Refuted(f"the report speaks of {told} inputs, and has flags of {found}")
    if not report.samples:
        raise Refuted("the report has no samples")
    told = report.seed, report.shard_size, report.definitions
    if told != (report.spec.seed, SHARD_SIZE, DEFINITIONS):
        raise Refuted("seed, shard size or definitions are not those of the spec and this format")
    for model in report.summary.models:
        figures = *map(len, (model.attacks, model.corruptions, model.certificates)), model.samples
        if figures != (*_wanted(report), len(report.samples)):
            raise Refuted(f"{model.name} has not the figures of all attacks of the spec")
    models = [model.name for model in report.summary.models]
    for i, sample in enumerate(report.samples):
        if sample.index != i or [found.name for found in sample.models] != models:
            raise Refuted(f"the flags of input {i + 1} are missing, or those of others")
        _check_sample(report, sample)


def _check_sample(report: Report, sample: Sample) -> None:
    where = f"input {sample.index + 1}"
    if sample.label is not None and not 0 <= sample.label < len(report.data.labels):
        raise Refuted(f"the label of {where} is no class")
    for flags in sample.models:
        _check_flags(report, flags, where)


def _check_flags(report: Report, flags: ModelFlags, where: str) -> None:
    found = len(flags.attacks), len(flags.corruptions), len(flags.certificates)
    if found != _wanted(report):
        raise Refuted(f"{where} has not the flags of all attacks of the spec")
    told = [flags.clean.index]
    told += [found.adversarial_index for found in flags.attacks]
    told += [found.index for found in flags.corruptions]
    if any(not 0 <= index < len(report.data.labels) for index in told):
        raise Refuted(f"{where} has a predicted class that is none")
    corruptions = [
        cell.budget.text for cell in report.spec.cells if cell.attack.info.role == "corruption"
    ]
    if [f"{found.name}:{found.severity}" for found in flags.corruptions] != corruptions:
        raise Refuted(f"{where} has the flags of other corruptions than the spec")


def _wanted(report: Report) -> tuple[int, int, int]:
    """How many attacks, corruptions and certificates the spec has."""
    roles = [cell.attack.info.role for cell in report.spec.cells]
    return roles.count("attack"), roles.count("corruption"), roles.count("certificate")
