"""The processes that train one model, as `torchrun` starts them; the signals they receive."""

import contextlib
import importlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType

import torch
from torch import Tensor, distributed


def _default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """This process among those that train one model."""

    rank: int = 0  # number of this process
    size: int = 1  # number of processes
    device: torch.device = field(default_factory=_default_device)  # where this process computes

    @property
    def is_first(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def part(self, batch_size: int) -> slice:
        """This process's samples of a batch that `size` divides."""
        own = batch_size // self.size
        return slice(self.rank * own, (self.rank + 1) * own)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes, on the CPU."""
        if self.size == 1:
            return values.cpu()
        shared = values.to(self.device, copy=True)  # reduced in place
        distributed.all_reduce(shared)
        return shared.cpu()

    def max(self, value: int) -> int:
        """The largest value of all processes, without waiting for what a GPU still has to do."""
        if self.size == 1:
            return value
        shared = torch.tensor(value)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX)
        return int(shared)

    def wait(self) -> None:
        """Let all processes come this far."""
        if self.size > 1:
            distributed.barrier()


@contextlib.contextmanager
def process_group() -> Iterator[Processes]:
    """Join the processes that `torchrun` started, over gloo and, between GPUs, over NCCL.

    What shares gradients must be gone when the `with` block ends, for it keeps the group's threads.

    Yields:
        This process; the only one where `torchrun` started none.
    """
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        yield Processes()
        return
    # DistributedDataParallel imports it later, and its default arguments would then keep the group
    # to the end: its threads abort the process if a peer goes while the interpreter ends.
    importlib.import_module("torch.distributed.nn.functional")
    rank, device = int(os.environ["RANK"]), _default_device()
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        distributed.init_process_group("cpu:gloo,cuda:nccl", device_id=device)
    else:
        distributed.init_process_group("gloo")
    interrupted: KeyboardInterrupt | None = None
    try:
        yield Processes(rank=rank, size=size, device=device)
    except KeyboardInterrupt as error:
        interrupted = error
    # After any other error the others may wait for this process in vain: torchrun ends them all.
    distributed.barrier()  # gloo may abort a process whose peer has gone
    distributed.destroy_process_group()
    if interrupted:
        raise interrupted


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def interruption() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C or SIGTERM inside the `with` block into a flag.

    A second Ctrl-C interrupts at once. Outside of the main thread signals are left alone.

    Yields:
        Whether the run was asked to stop.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in _SIGNALS}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Processes started inside the `with` block receive neither Ctrl-C nor SIGTERM.

    Launchers signal all processes of a group. Workers that died of it would end the run, with an
    error, before it has saved; so they live until the run ends them.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # children inherit what is blocked
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
