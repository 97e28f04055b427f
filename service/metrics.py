"""What the service measures of itself."""

from typing import Protocol


class Observer(Protocol):
    """Is told of what a model's batches do."""

    def batch(self, model: str, size: int, queue_s: float, compute_s: float) -> None:
        """A batch of `size` inputs was computed.

        Args:
            model: the model's name.
            size: inputs in the batch.
            queue_s: how long the oldest of its requests waited, in seconds.
            compute_s: how long the computation took, in seconds.
        """
        ...

    def queued(self, model: str, count: int) -> None:
        """Now `count` inputs wait for `model`."""
        ...


class _Silent:
    """Keeps nothing."""

    def batch(self, model: str, size: int, queue_s: float, compute_s: float) -> None:
        """Nothing."""

    def queued(self, model: str, count: int) -> None:
        """Nothing."""


SILENT: Observer = _Silent()
