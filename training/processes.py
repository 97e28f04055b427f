"""The processes that train one model together, as `torchrun` starts them; or the only one."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed


def _default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Processes:
    """This process among those that train one model.

    Attributes:
        rank: number of this process, from 0.
        size: number of processes.
        device: where this process computes.
    """

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=_default_device)

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
def joined() -> Iterator[Processes]:
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
