"""Score a served classifier under attack; importing this package does not import torch."""

from typing import TYPE_CHECKING, Any

from robustness.parsing import parse_eps
from robustness.spec import ATTACKS, EvaluationSpec, Gate, cost, parse_gate

if TYPE_CHECKING:
    from robustness.notebook import evaluate

__all__ = ["ATTACKS", "EvaluationSpec", "Gate", "cost", "evaluate", "parse_eps", "parse_gate"]


def __getattr__(name: str) -> Any:
    """Import `evaluate`, and torch with it, when it is asked for."""
    if name != "evaluate":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from robustness.notebook import evaluate

    return evaluate
