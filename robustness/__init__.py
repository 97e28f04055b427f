"""Score a served classifier under attack; importing this package does not import torch."""

from robustness.gate import Gate, parse_gate
from robustness.parsing import parse_eps
from robustness.spec import ATTACKS, EvaluationSpec, cost

__all__ = ["ATTACKS", "EvaluationSpec", "Gate", "cost", "parse_eps", "parse_gate"]
