"""The gradient of a margin from a handful of queries, with what is known of it already."""

import numpy as np

from robustness.attacks.queries import Oracle

_FLOOR = 4  # at least a quarter of the directions is asked about, however well the guess fits


class Slopes:
    """Estimates the gradient of one label's margin, at one iterate after another.

    Plain SPSA asks on both sides of the iterate for each of n random directions v, with entries
    -1 and 1, and averages slope * v. Two things spare queries at equal precision:

    - One side is enough. The margins are centred by their mean, which removes what is even in v as
      well as the other side would while the margin is nearly linear over `delta`.
    - A guess g is a control variate: the margins are regressed on the guess's own answers v @ g,
      the fitted multiple of g is kept, and only the residuals are averaged. A guess that explains a
      share R2 of the variance leaves 1 - R2 of it, so that (1 - R2) n directions are as precise as
      n were. R2 is taken from the iterate before. Where a model is rugged or noisy, or the guess is
      bad, R2 is near 0 and all n directions are asked about.

    Args:
        oracle: the model.
        label: whose margin it is.
        random: of the directions.
        samples: n, the number of directions of a plain estimate.
        delta: how far the probes are from the iterate, in every pixel.
        batch: how many probes are asked for together, at most.

    Source: Spall 1992 and Uesato et al. 2018, algorithm 1; control variates as in Owen, "Monte
    Carlo theory, methods and examples", section 8.9.
    """

    def __init__(
        self,
        oracle: Oracle,
        label: int,
        random: np.random.Generator,
        *,
        samples: int,
        delta: float,
        batch: int,
    ) -> None:
        self._oracle, self._label, self._random = oracle, label, random
        self._samples, self._delta, self._batch = samples, np.float32(delta), batch
        self._explained = 0.0  # R2

    def at(self, point: np.ndarray, guess: np.ndarray | None = None) -> np.ndarray:
        """The gradient at one image, (C, H, W) float64, estimated without bias to first order.

        Args:
            point: (C, H, W) float32.
            guess: of the gradient, at any scale.
        """
        directions = self._directions(point.size)
        answers = _centred(self._ask(point, directions))
        self._explained, known = 0.0, np.float64(0)
        if guess is not None:
            forecast = _centred(directions @ guess.ravel().astype(np.float32))
            power, variance = forecast @ forecast, answers @ answers
            if power > 0 and variance > 0:
                multiple = (answers @ forecast) / power
                answers = answers - multiple * forecast
                self._explained = float(1 - (answers @ answers) / variance)
                known = multiple / self._delta * guess
        average = answers.astype(np.float32) @ directions / (self._delta * (len(directions) - 1))
        return known + average.reshape(point.shape).astype(np.float64)

    def _directions(self, size: int) -> np.ndarray:
        least = max(self._samples // _FLOOR, 2)
        count = max(round(self._samples * (1 - self._explained)), least)
        count = min(count, self._samples)
        bits = np.frombuffer(self._random.bytes(-(-count * size // 8)), np.uint8)
        signs = np.unpackbits(bits, count=count * size).astype(np.float32)
        return (2 * signs - 1).reshape(count, size)

    def _ask(self, point: np.ndarray, directions: np.ndarray) -> np.ndarray:
        margins = []
        for start in range(0, len(directions), self._batch):
            part = directions[start : start + self._batch]
            probes = point + self._delta * part.reshape(-1, *point.shape)
            margins.append(self._oracle.margins(probes, np.full(len(part), self._label)))
        return np.concatenate(margins).astype(np.float64)


def _centred(values: np.ndarray) -> np.ndarray:
    """Less their mean; a margin that is not finite says nothing, so it becomes 0."""
    finite = np.isfinite(values)
    values = np.where(finite, values, 0).astype(np.float64)
    return np.where(finite, values - values.sum() / max(finite.sum(), 1), 0)
