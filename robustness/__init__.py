"""Score a served classifier under attack; importing this package does not import torch."""

from robustness.parsing import parse_eps
from robustness.spec import ATTACKS, EvaluationSpec, Gate, cost, parse_gate

__all__ = ["ATTACKS", "EvaluationSpec", "Gate", "cost", "parse_eps", "parse_gate"]
