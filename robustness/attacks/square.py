"""Square: a random search by queries that changes one square of the image at a time."""

from collections import deque
from collections.abc import Sequence
from typing import Literal

import numpy as np

from robustness.attacks.queries import Oracle, Predict, check_request
from robustness.attacks.square_draws import (
    Draws,
    KernelDraws,
    Moves,
    Norm,
    OwnDraws,
    pattern,
)
from robustness.progress import Meter

_TINY = np.float32(1e-12)


def square(
    predict: Predict,
    images: np.ndarray,
    labels: np.ndarray,
    *,
    norm: Norm,
    eps: float,
    queries: int,
    seeds: Sequence[int],
    leave: bool = True,
    draws: Literal["own", "kernel"] = "own",
    batch: int = 64,
    meter: Meter | None = None,
) -> np.ndarray:
    """Look for misclassified images within a ball, by queries alone.

    Every query repaints one square of the best image so far and keeps it when the margin of the
    label falls: to a corner of the l-infinity ball, or, for l2, to a hill and a hollow paid for by
    clearing another square. An image that is fooled gives its place in the batch to the next one.

    Args:
        predict: the model that is asked.
        images: (N, C, H, W) float32 in [0, 1].
        labels: (N,) int64 class indices.
        norm: of the ball.
        eps: its radius in pixel units, e.g. 8 / 255.
        queries: moves of an image, besides the query of its start.
        seeds: one for each image; with `draws="own"` all that is random about it.
        leave: stop with an image once it is fooled, and leave alone what is misclassified already.
            Otherwise every image is attacked to the end, its margin lowered ever more.
        draws: "kernel" makes the draws of torchattacks' kernel with the seed `seeds[0]` and asks
            for all images at once, as that does.
        batch: how many images are asked for together.
        meter: told of every model evaluation.

    Returns:
        The images of the lowest margin met, (N, C, H, W) float32.

    Raises:
        ValueError: an argument is out of range, or the kernel's draws are wanted without leaving.

    Source: Croce & Hein 2020, algorithms 1 to 3, margin loss. We place squares uniformly over all
    places where they fit; the kernel spares the last row and column.
    """
    check_request(images, labels, seeds=seeds, eps=eps, batch=batch)
    if queries < 1:
        raise ValueError(f"queries must be at least 1, got {queries}")
    if draws == "kernel" and not leave:
        raise ValueError("leave must be true with draws='kernel': the kernel always leaves")
    batch = max(len(images), 1) if draws == "kernel" else batch
    oracle = Oracle(predict, meter)
    waiting = oracle.right(images, labels, batch) if leave else np.arange(len(images))
    shape = images.shape[1:]
    seats = min(batch, len(waiting))
    source: Draws = (
        KernelDraws(shape, norm, queries, seeds[0], waiting)
        if draws == "kernel"
        else OwnDraws(shape, norm, queries, seeds, seats)
    )
    found = images.copy()
    search = _Search(images, deque(waiting.tolist()), source, norm, np.float32(eps), seats)
    while len(search.index):
        trial = search.propose()
        search.judge(trial, oracle.margins(trial, labels[search.index]))
        done = search.step == queries
        search.release(done | (search.margin < 0) if leave else done, found)
    return found


class _Search:
    """The images that are attacked together, each at its own step.

    Attributes:
        index: (n,) which image.
        step: (n,) its next move; -1 before its start has been asked for.
        margin: (n,) of its best image so far.
    """

    def __init__(
        self,
        images: np.ndarray,
        waiting: deque[int],
        draws: Draws,
        norm: Norm,
        eps: np.float32,
        seats: int,
    ) -> None:
        self._images, self._waiting, self._draws = images, waiting, draws
        self._norm, self._eps = norm, eps
        self.index = np.zeros(seats, np.int64)
        self.step = np.zeros(seats, np.int64)
        self.margin = np.zeros(seats, np.float32)
        self._seat = np.arange(seats)
        self._clean, self._best, self._low, self._high = (
            np.zeros((seats, *images.shape[1:]), np.float32) for _ in range(4)
        )
        for place in range(seats):
            self._seat_next(place)

    def propose(self) -> np.ndarray:
        """The images to ask for next, (n, C, H, W)."""
        trial = self._best.copy()
        moving = np.flatnonzero(self.step >= 0)
        if len(moving) and self._norm == "Linf":
            moves = self._draws.moves(self._seat[moving], self.step[moving])
            _repaint(trial, moving, moves, self._low, self._high, self._eps)
        elif len(moving):
            moves = self._draws.moves(self._seat[moving], self.step[moving])
            trial[moving] = _shift_mass(self._clean[moving], trial[moving], moves, self._eps)
        return trial

    def judge(self, trial: np.ndarray, margin: np.ndarray) -> None:
        """Keep what lowers the margin, and go on to the next step."""
        better = margin < self.margin
        self._best[better] = trial[better]
        self.margin = np.where(better, margin, self.margin)
        self.step += 1

    def release(self, done: np.ndarray, found: np.ndarray) -> None:
        """Write down what was found for some images, and give their places to waiting ones."""
        if not done.any():
            return
        found[self.index[done]] = self._best[done]
        free = np.flatnonzero(done)
        taken = min(len(free), len(self._waiting))
        for place in free[:taken]:
            self._seat_next(place)
        keep = np.delete(np.arange(len(done)), free[taken:])
        if len(keep) < len(done):
            self.index, self.step, self.margin = (
                self.index[keep],
                self.step[keep],
                self.margin[keep],
            )
            self._seat, self._clean, self._best = (
                self._seat[keep],
                self._clean[keep],
                self._best[keep],
            )
            self._low, self._high = self._low[keep], self._high[keep]

    def _seat_next(self, place: int) -> None:
        index = self._waiting.popleft()
        clean, eps = self._images[index], self._eps
        start = self._draws.start(index, int(self._seat[place]))
        self.index[place], self.step[place], self.margin[place] = index, -1, np.inf
        self._clean[place] = clean
        self._low[place], self._high[place] = np.maximum(clean - eps, 0), np.minimum(clean + eps, 1)
        self._best[place] = (clean + start * eps).clip(0, 1)


def _repaint(
    trial: np.ndarray,
    moving: np.ndarray,
    moves: Moves,
    low: np.ndarray,
    high: np.ndarray,
    eps: np.float32,
) -> None:
    """Move each square by 2 eps, in place: from wherever it is, that reaches a side of the ball."""
    flat, floor, ceiling = (array.reshape(-1) for array in (trial, low, high))
    for side in np.unique(moves.side):
        rows = np.flatnonzero(moves.side == side)
        window = _window(trial.shape, moving[rows], moves.places[rows, :2], side)
        moved = flat[window] + 2 * eps * moves.signs[rows, :, None, None]
        np.maximum(moved, floor[window], out=moved)
        flat[window] = np.minimum(moved, ceiling[window], out=moved)


def _shift_mass(clean: np.ndarray, best: np.ndarray, moves: Moves, eps: np.float32) -> np.ndarray:
    """Clear two squares of each perturbation and paint a pattern of their norm into the first."""
    delta = best - clean
    flat = delta.reshape(-1)
    room = np.maximum(eps**2 - _square_norm(delta), 0)  # (n, 1, 1, 1)
    for side in np.unique(moves.side):
        rows = np.flatnonzero(moves.side == side)
        first = _window(delta.shape, rows, moves.places[rows, :2], side)
        second = _window(delta.shape, rows, moves.places[rows, 2:], side)
        old = flat[first]
        flat[first] = 0
        mass = _square_norm(old) + _square_norm(flat[second])
        flat[second] = 0
        shown = np.where(moves.turned[rows, None, None], pattern(side).T, pattern(side))
        new = shown[:, None] * moves.signs[rows, :, None, None] + old / (_TINY + _channel_norm(old))
        length = np.sqrt(room[rows] / delta.shape[1] + mass)
        flat[first] = new / (_TINY + _channel_norm(new)) * length
    delta = delta / (np.sqrt(_square_norm(delta)) + _TINY) * eps
    return np.clip(clean + delta, 0, 1, out=delta)


def _window(shape: tuple[int, ...], rows: np.ndarray, places: np.ndarray, side: int) -> np.ndarray:
    """Flat indices (n, C, side, side) of a square in each of n images of an array of this shape."""
    _, channels, height, width = shape
    corner = rows * (channels * height * width) + places[:, 0] * width + places[:, 1]
    along = np.arange(side)
    square = along[:, None] * width + along
    planes = np.arange(channels)[:, None, None] * (height * width)
    return corner[:, None, None, None] + planes + square


def _square_norm(x: np.ndarray) -> np.ndarray:
    return np.square(x).sum((1, 2, 3), keepdims=True)


def _channel_norm(x: np.ndarray) -> np.ndarray:
    return np.sqrt(np.square(x).sum((2, 3), keepdims=True))
