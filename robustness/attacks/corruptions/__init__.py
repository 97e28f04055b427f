"""Common corruptions: what weather, lenses, sensors and files do to images."""

from robustness.attacks.corruptions.corrupt import EXTRA_NAMES, NAMES, corrupt
from robustness.attacks.corruptions.mean_error import mean_corruption_error

__all__ = ["EXTRA_NAMES", "NAMES", "corrupt", "mean_corruption_error"]
