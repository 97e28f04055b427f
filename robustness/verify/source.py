"""Whether the stored inputs are those of the data set that they are said to come from."""

import numpy as np

from data.sources import ImageSet, load_inputs, open_images, open_texts
from data.text_set import TextSet
from robustness.report.markup import plain
from robustness.report.schema import Report
from robustness.target import ImageTarget, Target
from robustness.verify.evidence import Inputs
from robustness.verify.outcome import Refuted


def check_source(report: Report, target: Target, clean: Inputs, data: str) -> None:
    """Compare stored inputs and labels with a data set, sample by sample.

    Args:
        report: names and labels of the samples.
        target: the model, which says how images become inputs.
        clean: the stored inputs.
        data: the data set, as `evaluate --data` takes it.

    Raises:
        Refuted: one differs, or is not there.
        ValueError: the data set cannot be opened.
    """
    opened = open_images if isinstance(target, ImageTarget) else open_texts
    source = opened(data, label_names=list(target.labels))
    places = _places(report, source)
    part = source.take(places)
    for sample, label in zip(report.samples, _labels(part), strict=True):
        if sample.label is not None and sample.label != label:
            raise Refuted(f"input {sample.index + 1} ({sample.name}) has another label in the data")
    for start in range(0, len(part), 64):
        rows = range(start, min(start + 64, len(part)))
        for row, same in zip(rows, _same(part.take(rows), target, clean, rows), strict=True):
            if not same:
                name = report.samples[row].name
                raise Refuted(f"input {row + 1} ({name}) is another one in the data")


def _places(report: Report, source: ImageSet | TextSet) -> list[int]:
    """Where each sample of the report is in the data set: found by name, or by place."""
    names = [plain(name) for name in source.names]
    if [sample.name for sample in report.samples] == names:
        return list(range(len(names)))
    known = {name: index for index, name in enumerate(names)}
    if len(known) < len(names):
        raise Refuted("several inputs of the data have one name, so that a part cannot be found")
    missing = next((s.name for s in report.samples if s.name not in known), None)
    if missing is not None:
        raise Refuted(f"the data have no input {missing}")
    return [known[sample.name] for sample in report.samples]


def _labels(part: ImageSet | TextSet) -> list[int | None]:
    return [None] * len(part) if part.labels is None else part.labels.tolist()


def _same(part: ImageSet | TextSet, target: Target, clean: Inputs, rows: range) -> list[bool]:
    stored = clean[rows.start : rows.stop]
    if isinstance(part, TextSet):
        return [text == before for text, before in zip(part, stored, strict=True)]
    if not isinstance(target, ImageTarget):
        return [False] * len(part)
    loaded = load_inputs(part, target.image_spec)
    return [bool(np.array_equal(a, b)) for a, b in zip(loaded, stored, strict=True)]
