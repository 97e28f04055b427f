"""Judge a report's stored inputs again, and confirm or refute what it says."""

from robustness.verify.outcome import Outcome
from robustness.verify.replay import verify

__all__ = ["Outcome", "verify"]
