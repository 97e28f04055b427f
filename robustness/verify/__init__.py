"""Score a report's stored inputs again, and confirm or refute what it says."""

from robustness.verify.outcome import Outcome
from robustness.verify.verification import verify

__all__ = ["Outcome", "verify"]
