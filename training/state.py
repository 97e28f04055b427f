"""What a run consists of at a step: saved, resumed, and its means over some steps."""

import math
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import Tensor, nn

from core.files import replacing
from training import run as records
from training.distributed import Processes
from training.optimizer import Average, build_optimizer
from training.recipe import TrainRecipe

_VERSION = 2
_KEPT = ("step", "seconds", "history", "best", "data_digest")


def saved_step(folder: Path) -> int:
    """The step at which a run was saved last; 0 in a folder without one."""
    path = folder / records.STATE
    if not path.is_file():
        return 0
    return torch.load(path, weights_only=True, map_location="cpu", mmap=True)["step"]


class Meter:
    """Sums since the last reading, of a resumed run too: loss, time, and time waiting for data.

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
            ValueError: it is not a finite number.
        """
        mean = self.state()["loss"] / max(self.steps, 1)
        if not math.isfinite(mean):
            raise ValueError(f"the loss is {mean}: a lower train.lr or fp32 may help")
        return mean

    def state(self) -> dict[str, float]:
        """What `load` needs; all processes must call it."""
        loss = float(self._processes.sum(self._loss)) / self._processes.size
        return {"steps": self.steps, "seconds": self.seconds, "waited": self.waited, "loss": loss}

    def load(self, state: dict[str, float]) -> None:
        """Continue from what `state` gave."""
        self.steps = int(state["steps"])
        self.seconds, self.waited = state["seconds"], state["waited"]
        self._loss.fill_(state["loss"])


class State:
    """A run at a step, with its optimizer and the average of its weights, if it has one.

    Args:
        model: with its first weights.
        train: names optimizer and average.
        processes: those that train together.
        data_digest: of the data; a run is not continued with other data.
    """

    def __init__(
        self, model: nn.Module, train: TrainRecipe, processes: Processes, data_digest: str
    ) -> None:
        self.model, self.processes, self.data_digest = model, processes, data_digest
        self.optimizer = build_optimizer(model, train)
        self.average = Average(model, train.ema) if train.ema else None
        self.step, self.seconds = 0, 0.0  # done; spent training and validating
        self.history: list[dict[str, float]] = []  # one row per validation
        self.best: dict[str, float] = {}  # `score` and `validation`, counted from 1, of the best
        self.recent = Meter(processes)  # since the last row of the log
        self.since = Meter(processes)  # since the last validation

    def count(self, loss: torch.Tensor, seconds: float, waited: float) -> None:
        """Count a step; see `Meter.add`."""
        self.step += 1
        self.seconds += seconds
        for meter in (self.recent, self.since):
            meter.add(loss, seconds, waited)

    def save(self, folder: Path) -> None:
        """Write the state; all processes must call it, the first one writes."""
        meters = {"recent": self.recent.state(), "since": self.since.state()}
        if not self.processes.is_first:
            return
        state = {name: getattr(self, name) for name in _KEPT} | meters
        state |= {"version": _VERSION, "average": self.average and self.average.state}
        state |= {name: getattr(self, name).state_dict() for name in ("model", "optimizer")}
        with replacing(folder / records.STATE) as partial:
            torch.save(state, partial)

    def averaged(self) -> AbstractContextManager[None]:
        """Inside a `with` block the model has the averaged weights, if there is an average."""
        return nullcontext() if self.average is None else self.average.applied(self.model)

    def resume(self, folder: Path) -> None:
        """Continue from what was saved in a folder, if anything was.

        Raises:
            ValueError: the run was started with other data, or by another version of this code.
        """
        path = folder / records.STATE
        if not path.is_file():
            return
        state = torch.load(path, weights_only=True, map_location="cpu")
        if state.get("version") != _VERSION:
            raise ValueError(f"{path} is of another version: the run can be exported, not resumed")
        if state["data_digest"] != self.data_digest:
            raise ValueError("the data is not what this run was started with")
        for name in _KEPT:
            setattr(self, name, state[name])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load(state["average"])
        self.recent.load(state["recent"])
        self.since.load(state["since"])
