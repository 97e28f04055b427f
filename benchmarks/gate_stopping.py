"""How soon is a gate decided, and how often wrongly, where an evaluation may stop early?

No model is asked: inputs hold by chance, each with a known share. Coverage is that of looking after
every input; decisions are taken after every 32, as evaluations do.
"""

from collections.abc import Iterable, Iterator
from functools import cache

import numpy as np

from benchmarks.support.rows import Row, figure
from core.stats import CONFIDENCE, confidence_sequence, wilson
from robustness.spec import Gate
from robustness.store import SHARD_SIZE

_INPUTS = 1000
_SHARES = (0.05, 0.3, 0.5, 0.6, 0.9)
_DISTANCE = 0.1  # of the threshold from the share
_DECISIONS = 1000  # evaluations whose end is looked for


def run(simulations: int = 10_000) -> Iterable[Row]:
    """Evaluate 1,000 inputs many times.

    Args:
        simulations: evaluations for each share that holds.
    """
    draw = np.random.default_rng(0)
    for share in _SHARES:
        held = (draw.random((simulations, _INPUTS)) < share).cumsum(axis=1)
        low, high = _likely(share)
        right = int(((held >= low) & (held <= high)).all(axis=1).sum())
        yield figure(
            f"{share:.0%} hold: the interval after every one of {_INPUTS} inputs is right",
            right / simulations,
            "share",
            better="higher",
            target=CONFIDENCE,
            samples=simulations,
            spread=wilson(right, simulations),
        )
        for threshold in (share - _DISTANCE, share + _DISTANCE):
            if 0 < threshold < 1:
                yield from _decisions(share, threshold, held[:_DECISIONS])


def _likely(share: float) -> tuple[np.ndarray, np.ndarray]:
    """Fewest and most that may hold (N,) of 1, 2, ... inputs for the interval to have the share."""
    low, high, fewest, most = [], [], 0, 0
    for inputs in range(1, _INPUTS + 1):
        # Both grow by one at most with each input.
        fewest += confidence_sequence(fewest, inputs)[1] < share
        most += most < inputs and confidence_sequence(most + 1, inputs)[0] <= share
        low.append(fewest)
        high.append(most)
    return np.array(low), np.array(high)


def _decisions(share: float, threshold: float, held: np.ndarray) -> Iterator[Row]:
    gate = Gate(metric="robust_accuracy", op=">=", threshold=threshold)

    @cache
    def interval(successes: int, inputs: int) -> tuple[float, float]:
        """The confidence sequence, asked for the same counts again and again."""
        return confidence_sequence(successes, inputs)

    looks = [*range(SHARD_SIZE, _INPUTS, SHARD_SIZE), _INPUTS]
    ends, passed = [], 0
    for row in held:
        intervals = ((n, *interval(int(row[n - 1]), n)) for n in looks)
        decided = ((n, low) for n, low, high in intervals if gate.decided(low, high))
        inputs, low = next(decided, (_INPUTS, 0.0))
        ends.append(float(inputs))
        passed += gate.holds(low)
    about = f"{share:.0%} hold, gate at {threshold:.0%}"
    yield figure(f"{about}: inputs to its decision", ends, "inputs", target=_INPUTS / 3)
    wrong = passed if share < threshold else len(held) - passed
    yield figure(
        f"{about}: decided wrongly or not at all",
        wrong / len(held),
        "share",
        target=1 - CONFIDENCE,
        samples=len(held),
        spread=wilson(wrong, len(held)),
    )
