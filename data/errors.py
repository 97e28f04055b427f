"""The errors that readers of data sets raise."""

from collections.abc import Sequence

from core.names import listed

_SHOWN, _LONG = 20, 60  # classes in a message, and characters of a name
MAP_CLASSES = (
    "If these are the same classes under other names, {option} says which is which, as in "
    '{{"automobile": "car"}}; "index" takes class i of the data for class i of the model.'
)


class DataError(ValueError):
    """A data set that cannot be used; the message names the file and the rule."""


class ClassMismatch(DataError):
    """Data that name classes which the model does not have.

    Attributes:
        classes: those of the data, as they name them, without the ends of long names.
        label_names: those of the model, too.
    """

    def __init__(self, reason: str, classes: Sequence[str], label_names: Sequence[str]) -> None:
        self.classes, self.label_names = (
            [name[:_LONG] for name in names] for names in (classes, label_names)
        )
        super().__init__(
            f"{reason}. Classes of the data: {listed(self.classes, _SHOWN)}; "
            f"of the model: {listed(self.label_names, _SHOWN)}"
        )
