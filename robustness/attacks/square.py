"""Square: a random search by queries that changes one square of the image at a time."""

from collections import deque
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from robustness.attacks.base import Info, LinfOrL2, Search
from robustness.attacks.queries import Oracle, QueryAttack
from robustness.attacks.square_draws import Draws, Moves, pattern
from robustness.parsing import Count

_TINY = np.float32(1e-12)
_BATCH = 64  # images asked for together, at most


class Square(QueryAttack, frozen=True):
    """Random squares, kept where they lower the margin; it asks the served model.

    Every query repaints one square of the best image so far and keeps it when the margin of the
    label falls: to a corner of the l-infinity ball, or, for l2, to a hill and a hollow paid for by
    clearing another square. An image that is fooled gives its place in the batch to the next one.

    Source: Andriushchenko et al. 2020, algorithms 1 to 3, margin loss. We place squares uniformly
    over all places where they fit; the kernel of torchattacks spares the last row and column.
    """

    info: ClassVar[Info] = Info(
        title="Square",
        paper="Andriushchenko et al. 2020",
        references=("arXiv:1912.00049",),
        what="repaints squares and only asks for answers, without gradients",
        access="scores",
        norms=("Linf", "L2"),
    )
    name: Literal["square"] = "square"
    norm: LinfOrL2 = "Linf"
    queries: Count = Field(default=5000, description="model evaluations of one input at most")

    def cost(self, num_classes: int) -> int:
        """The queries, one for the clean image and one for the start."""
        return self.queries + 2

    def perturb(
        self, oracle: Oracle, images: np.ndarray, labels: np.ndarray, eps: float, search: Search
    ) -> np.ndarray:
        """See `QueryAttack.perturb`; the images of the lowest margin met."""
        leave = search.leave
        waiting = oracle.right(images, labels, _BATCH) if leave else np.arange(len(images))
        seats = min(_BATCH, len(waiting))
        draws = Draws(images.shape[1:], self.norm, self.queries, search.seeds, seats)
        return self.search(
            oracle, images, labels, waiting, draws, eps=eps, seats=seats, leave=leave
        )

    def search(
        self,
        oracle: Oracle,
        images: np.ndarray,
        labels: np.ndarray,
        waiting: np.ndarray,
        draws: Draws,
        *,
        eps: float,
        seats: int,
        leave: bool = True,
    ) -> np.ndarray:
        """Attack the `waiting` images by any draws, so many at a time; see `perturb`."""
        found = images.copy()
        brush = _Corners() if self.norm == "Linf" else _Mass()
        search = _Search(images, deque(waiting.tolist()), draws, brush, np.float32(eps), seats)
        while len(search.index):
            proposed = search.propose()
            better = search.keep(oracle.margins(proposed, labels[search.index]))
            done = search.step == self.queries
            if leave:
                done |= better & (search.margin < 0)
            search.release(done, found)
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
        brush: "_Corners | _Mass",
        eps: np.float32,
        seats: int,
    ) -> None:
        self._images, self._waiting, self._draws = images, waiting, draws
        self._brush, self._eps = brush, eps
        self.index = np.zeros(seats, np.int64)
        self.step = np.zeros(seats, np.int64)
        self.margin = np.zeros(seats, np.float32)
        self._seat = np.arange(seats)
        self._clean = np.zeros((seats, *images.shape[1:]), np.float32)
        self._best = self._clean.copy()
        for place in range(seats):
            self._seat_next(place)

    def propose(self) -> np.ndarray:
        """The images to ask for next, (n, C, H, W)."""
        moving = np.flatnonzero(self.step >= 0)
        moves = self._draws.moves(self._seat[moving], self.step[moving])
        return self._brush.paint(self._best, self._clean, moving, moves, self._eps)

    def keep(self, margin: np.ndarray) -> np.ndarray:
        """Keep what lowers the margin, (n,) bool, and go on to the next step."""
        better = margin < self.margin
        self._brush.keep(self._best, better)
        self.margin = np.where(better, margin, self.margin)
        self.step += 1
        return better

    def release(self, done: np.ndarray, found: np.ndarray) -> None:
        """Write down what was found for some images, and give their places to waiting ones."""
        if not done.any():
            return
        found[self.index[done]] = self._best[done]
        free = np.flatnonzero(done)
        taken = min(len(free), len(self._waiting))
        for place in free[:taken]:
            self._seat_next(place)
        if taken < len(free):
            keep = np.delete(np.arange(len(done)), free[taken:])
            self.index, self.step, self._seat = self.index[keep], self.step[keep], self._seat[keep]
            self.margin, self._clean = self.margin[keep], self._clean[keep]
            self._best = self._best[keep]

    def _seat_next(self, place: int) -> None:
        index = self._waiting.popleft()
        start = self._draws.start(index, int(self._seat[place]))
        self.index[place], self.step[place], self.margin[place] = index, -1, np.inf
        self._clean[place] = self._images[index]
        self._best[place] = (self._images[index] + start * self._eps).clip(0, 1)


class _Corners:
    """l-infinity: each channel of a square moves by 2 eps, from wherever to a side of the ball.

    Squares are painted into the best images themselves, and wiped off where they are no better.
    """

    def __init__(self) -> None:
        self._before: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def paint(
        self, best: np.ndarray, clean: np.ndarray, moving: np.ndarray, moves: Moves, eps: np.float32
    ) -> np.ndarray:
        """The images to ask for: the best ones with a move made on `moving` rows."""
        flat, centre = best.reshape(-1), clean.reshape(-1)
        self._before.clear()
        for side in np.unique(moves.side):
            rows = np.flatnonzero(moves.side == side)
            window = _window(best.shape, moving[rows], moves.places[rows, :2], side)
            old, middle = flat[window], centre[window]
            moved = old + 2 * eps * moves.signs[rows, :, None, None]
            low, high = ((middle + end).clip(0, 1) for end in (-eps, eps))
            flat[window] = np.clip(moved, low, high, out=moved)
            self._before.append((moving[rows], window, old))
        return best

    def keep(self, best: np.ndarray, better: np.ndarray) -> None:
        """Let `best` have the painted images where they are better, (n,) bool."""
        for rows, window, old in self._before:
            lost = ~better[rows]
            best.reshape(-1)[window[lost]] = old[lost]


class _Mass:
    """l2: two squares of the perturbation are cleared; a pattern of their norm fills the first."""

    def __init__(self) -> None:
        self._painted = self._squares = np.zeros(0, np.float32)

    def paint(
        self, best: np.ndarray, clean: np.ndarray, moving: np.ndarray, moves: Moves, eps: np.float32
    ) -> np.ndarray:
        """The images to ask for: the best ones with a move made on `moving` rows."""
        if self._painted.shape != best.shape:
            self._painted, self._squares = np.empty_like(best), np.empty_like(best)
        delta = np.subtract(best, clean, out=self._painted)
        room = np.maximum(eps**2 - self._power(delta), 0)[moving]
        for side in np.unique(moves.side):
            group = np.flatnonzero(moves.side == side)
            _repaint(delta, moving[group], moves, group, room[group])
        delta /= np.sqrt(self._power(delta)) + _TINY
        delta *= eps
        delta += clean
        np.clip(delta, 0, 1, out=delta)
        if len(moving) < len(best):
            fresh = np.delete(np.arange(len(best)), moving)
            delta[fresh] = best[fresh]
        return delta

    def keep(self, best: np.ndarray, better: np.ndarray) -> None:
        """Let `best` have the painted images where they are better, (n,) bool."""
        best[better] = self._painted[better]

    def _power(self, delta: np.ndarray) -> np.ndarray:
        """Squared norms, (n, 1, 1, 1); summed in pairs, or eps would be missed by rounding."""
        squares = np.square(delta, out=self._squares)
        return squares.reshape(len(delta), -1).sum(1)[:, None, None, None]


def _repaint(
    delta: np.ndarray, rows: np.ndarray, moves: Moves, group: np.ndarray, room: np.ndarray
) -> None:
    """Make the l2 moves `group`, all of one side, on these rows of the perturbations, in place."""
    side = int(moves.side[group[0]])
    flat = delta.reshape(-1)
    first = _window(delta.shape, rows, moves.places[group, :2], side)
    second = _window(delta.shape, rows, moves.places[group, 2:], side)
    old = flat[first]
    power = np.square(old).sum((2, 3), keepdims=True)  # of each channel
    flat[first] = 0
    mass = power.sum(1, keepdims=True) + np.square(flat[second]).sum((1, 2, 3), keepdims=True)
    flat[second] = 0
    shown = np.where(moves.turned[group, None, None], pattern(side).T, pattern(side))
    new = shown[:, None] * moves.signs[group, :, None, None] + old / (_TINY + np.sqrt(power))
    norm = np.sqrt(np.square(new).sum((2, 3), keepdims=True))
    flat[first] = new / (_TINY + norm) * np.sqrt(room / delta.shape[1] + mass)


def _window(shape: tuple[int, ...], rows: np.ndarray, places: np.ndarray, side: int) -> np.ndarray:
    """Flat indices (n, C, side, side) of a square in each of n images of an array of this shape."""
    _, channels, height, width = shape
    corner = rows * (channels * height * width) + places[:, 0] * width + places[:, 1]
    along = np.arange(side)
    square = along[:, None] * width + along
    planes = np.arange(channels)[:, None, None] * (height * width)
    return corner[:, None, None, None] + planes + square
