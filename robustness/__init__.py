"""Judge a served classifier under attack; importing this package does not import torch."""

from robustness.spec import AttackSpec, EvaluationSpec, Gate, cost, parse_eps, parse_gate

__all__ = ["AttackSpec", "EvaluationSpec", "Gate", "cost", "parse_eps", "parse_gate"]
