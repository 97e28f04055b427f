"""Means over some steps: loss, throughput and the share of time spent waiting for data."""

import math

import torch
from torch import Tensor

from training.processes import Processes


class Meter:
    """Sums since the last reading; it goes on across a resumed run.

    Args:
        processes: whose mean loss is read.
    """

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self.clear()

    def clear(self) -> None:
        """Begin again."""
        self.steps = 0
        self.seconds = self.waited = 0.0
        # Summed on the device: reading each loss would make a GPU wait.
        self._loss = torch.zeros((), dtype=torch.float64, device=self._processes.device)

    def add(self, loss: Tensor, seconds: float, waited: float) -> None:
        """Count a step: its loss, how long it took, and how long of that it waited for data."""
        self.steps += 1
        self._loss += loss.detach()
        self.seconds += seconds
        self.waited += waited

    def loss(self) -> float:
        """The mean loss of all steps and processes; all of them must call it.

        Raises:
            ValueError: it is no finite number.
        """
        mean = float(self._processes.sum(self._loss)) / self._processes.size / max(self.steps, 1)
        if not math.isfinite(mean):
            raise ValueError(f"the loss is {mean}: a lower train.lr or fp32 may help")
        return mean

    def state(self) -> dict[str, float]:
        """What `load` needs; all processes must call it."""
        loss = float(self._processes.sum(self._loss)) / self._processes.size
        return {"steps": self.steps, "seconds": self.seconds, "waited": self.waited, "loss": loss}

    def load(self, state: dict[str, float]) -> None:
        """Go on from what `state` gave."""
        self.steps = int(state["steps"])
        self.seconds, self.waited = state["seconds"], state["waited"]
        self._loss.fill_(state["loss"])
