"""Signs of a false figure: what would make an expert disbelieve an accuracy under attack."""

from robustness.doubts.case import Doubt
from robustness.doubts.find import find_doubts
from robustness.doubts.remarks import notes

__all__ = ["Doubt", "find_doubts", "notes"]
