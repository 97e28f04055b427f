"""Decode every image once before a run begins, so that no broken one ends it days later."""

from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

from data.errors import DataError
from training.processes import Processes
from training.samples import ReadImages
from training.tasks import Task

_CHUNK = 32


class _Faults(Dataset[str]):
    """Why each image cannot be decoded; empty where it can."""

    def __init__(self, samples: ReadImages) -> None:
        self._samples = samples

    def __getitem__(self, index: int) -> str:
        return self._samples.fault(index)


def check_readable(
    task: Task, processes: Processes, *, workers: int, progress: bool = False
) -> None:
    """Check the images of a task that are decoded for every batch; others were when it was opened.

    Args:
        task: what will be trained on.
        processes: among which the images are shared.
        workers: processes that decode; 0 decodes in this one.
        progress: show a progress bar for each split.

    Raises:
        DataError: an image cannot be decoded; the message names it.
    """
    for split, samples in (("train", task.train), ("valid", task.valid), ("test", task.test)):
        if not isinstance(samples, ReadImages):
            continue
        own = range(processes.rank, len(samples.labels), processes.size)
        faults = DataLoader(
            _Faults(samples),
            batch_size=_CHUNK,
            sampler=own,
            num_workers=workers,
            collate_fn=_as_it_is,
        )
        bar = tqdm(desc=f"check {split}", total=len(own), unit="image", disable=not progress)
        with bar:
            for chunk in faults:
                bar.update(len(chunk))
                if found := next(filter(None, chunk), None):
                    raise DataError(found)


def _as_it_is(chunk: list[str]) -> list[str]:
    return chunk
