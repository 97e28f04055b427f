"""What a run consists of at a step, and how it is saved and taken up again."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn

from training import run as records
from training.meter import Meter
from training.optimizer import Average
from training.processes import Processes


class State:
    """A run at a step.

    Args:
        model: with its first weights.
        optimizer: of these weights.
        average: the average of the weights, if the recipe asks for one.
        processes: those that train together.
        data_digest: of the data; a run is not continued with other data.

    Attributes:
        step: steps done.
        seconds: time spent training and validating.
        history: one row per validation.
        best: `score` and `validation` (counted from 1) of the best validation; empty before it.
        recent: means since the last row of the log.
        since: means since the last validation.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        average: Average | None,
        processes: Processes,
        data_digest: str,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.average = average
        self.data_digest = data_digest
        self.step, self.seconds = 0, 0.0
        self.history: list[dict[str, float]] = []
        self.best: dict[str, float] = {}
        self.recent, self.since = Meter(processes), Meter(processes)
        self._processes = processes

    def count(self, loss: torch.Tensor, seconds: float, waited: float) -> None:
        """Count a step; see `Meter.add`."""
        self.step += 1
        self.seconds += seconds
        for meter in (self.recent, self.since):
            meter.add(loss, seconds, waited)

    def save(self, folder: Path) -> None:
        """Write the state; all processes must call it, the first one writes."""
        meters = {"recent": self.recent.state(), "since": self.since.state()}
        if not self._processes.is_first:
            return
        state: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state,
            "step": self.step,
            "seconds": self.seconds,
            "history": self.history,
            "best": self.best,
            "data_digest": self.data_digest,
        }
        records.save_state(folder, state | meters)

    def judged(self) -> AbstractContextManager[None]:
        """Inside a `with` block the model has the weights to judge: the average if there is one."""
        return nullcontext() if self.average is None else self.average.applied(self.model)

    def resume(self, folder: Path) -> None:
        """Take up what was saved in a folder, if anything was.

        Raises:
            ValueError: the run was started with other data, or by another version of this code.
        """
        state = records.load_state(folder)
        if state is None:
            return
        if state["data_digest"] != self.data_digest:
            raise ValueError("the data is not what this run was started with")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load(state["average"])
        self.step, self.seconds = state["step"], state["seconds"]
        self.history, self.best = state["history"], state["best"]
        self.recent.load(state["recent"])
        self.since.load(state["since"])
