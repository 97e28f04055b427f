"""A condition that an accuracy must meet, so that a build fails when robustness falls."""

import math
import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

GateMetric = Literal["robust_accuracy", "clean_accuracy"]
GateOperator = Literal[">=", ">"]

_GATE = re.compile(r"\s*(\w+)\s*(>=|>)\s*(\S+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """A condition on the lower bound of an accuracy's interval, so that luck does not pass."""

    metric: GateMetric
    op: GateOperator
    threshold: float

    def holds(self, value: float) -> bool:
        """Whether a value satisfies the condition."""
        return value >= self.threshold if self.op == ">=" else value > self.threshold


def parse_gate(text: str) -> Gate:
    """Read a gate such as "robust_accuracy >= 0.40".

    Args:
        text: `metric op threshold`; the metric is robust_accuracy or clean_accuracy, the operator
            >= or >, the threshold lies in [0, 1].

    Raises:
        ValueError: the text is no such condition.
    """
    match = _GATE.fullmatch(text)
    if match is None or match[1] not in get_args(GateMetric):
        known = " or ".join(get_args(GateMetric))
        raise ValueError(
            f"gate must read 'METRIC >= NUMBER' with METRIC {known}, got {text[:60]!r}"
        )
    try:
        threshold = float(match[3])
    except ValueError:
        threshold = math.nan
    if not 0 <= threshold <= 1:
        raise ValueError(f"gate must compare with a number in [0, 1], got {match[3][:40]!r}")
    return Gate(
        metric=cast(GateMetric, match[1]), op=cast(GateOperator, match[2]), threshold=threshold
    )
