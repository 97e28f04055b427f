"""Judge a served classifier under attack; importing this package does not import torch."""

from robustness.attack_spec import AttackSpec
from robustness.gate import Gate, parse_gate
from robustness.parsing import parse_eps
from robustness.spec import EvaluationSpec, cost

__all__ = ["AttackSpec", "EvaluationSpec", "Gate", "cost", "parse_eps", "parse_gate"]
