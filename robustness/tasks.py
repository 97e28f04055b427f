"""What a model answers, and how right it is: a class, one for every pixel, or the next tokens.

Scoring rests on ranks, integers of which 0 is right and a larger one is worse: of a class the
number of classes before it, of an image's pixels the number of wrong ones, of a text's tokens how
many of a million are wrong. So the worst of several attacks is the largest rank of either.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import numpy as np

from core.stats import bootstrap_interval
from data.sets import IGNORED
from robustness.logits import all_finite, label_rank, margin, top_probability
from runtimes.tasks import Answer

_MILLION = 1_000_000


class Task(ABC):
    """What an input's answer is measured by.

    Attributes:
        gates: what a gate may compare.
        keeps: whether an input counts as wrong under attack that is wrong unattacked.
    """

    answer: ClassVar[Answer]
    metric: ClassVar[Literal["accuracy", "pixel accuracy", "token accuracy"]]
    gates: ClassVar[tuple[str, ...]]
    keeps: ClassVar[bool] = True

    @abstractmethod
    def rank(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """How wrong each input is, (N,) int64; one with a logit that is not finite, entirely."""

    @abstractmethod
    def share(self, rank: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """How right each input is, (N,) float64 in [0, 1], from its rank."""

    @abstractmethod
    def index(self, logits: np.ndarray) -> np.ndarray:
        """The class that is shown of each input, (N,) int64."""

    @abstractmethod
    def probability(self, logits: np.ndarray) -> np.ndarray:
        """How sure the answer is, (N,) float64; NaN if a logit is not finite."""

    @abstractmethod
    def margin(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """By how much each input is right, (N,) float64; minus infinity if not finite."""

    def tables(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray | None:
        """What a figure over all inputs together adds up; None where there is none."""
        return None

    def together(self, tables: np.ndarray, clean: np.ndarray) -> dict[str, Any]:
        """The figures over all inputs together, by their names in a report.

        Args:
            tables: what they add up, of N inputs, (..., N).
            clean: the same of the unchanged inputs.
        """
        return {}

    def shifted(self, logits: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
        """Logits (N, K, ...) with the label's moved by a share of the largest one of each input."""
        moved = logits.astype(np.float64)
        size = np.abs(moved).max(axis=tuple(range(1, moved.ndim)))
        step = share * np.where(np.isfinite(size), size, 0.0)
        own = np.where(labels < moved.shape[1], labels, 0)[:, None]  # pixels without a class
        there = np.take_along_axis(moved, own, axis=1)
        step = step.reshape(-1, *[1] * (moved.ndim - 1))
        np.put_along_axis(moved, own, there + step, axis=1)
        return moved


class Classification(Task):
    """One of K classes for each input: logits (N, K), labels (N,)."""

    answer = "class"
    metric = "accuracy"
    gates = ("robust_accuracy", "clean_accuracy", "proved_accuracy")

    def rank(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """See `label_rank`."""
        return label_rank(logits, labels)

    def share(self, rank: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """1 where the label comes first, else 0."""
        return (rank == 0).astype(np.float64)

    def index(self, logits: np.ndarray) -> np.ndarray:
        """The class with the largest logit."""
        return logits.argmax(axis=1)

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """See `top_probability`."""
        return top_probability(logits)

    def margin(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """See `margin`."""
        return margin(logits, labels)


class Segmentation(Task):
    """One of K classes for each pixel: logits (N, K, H, W), labels (N, H, W).

    Pixels whose label is `IGNORED` count nowhere.
    """

    answer = "pixels"
    metric = "pixel accuracy"
    gates = ("robust_pixel_accuracy", "clean_pixel_accuracy")

    def rank(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The number of pixels that get another class."""
        counted = labels != IGNORED
        wrong = ((logits.argmax(axis=1) != labels) & counted).sum(axis=(1, 2))
        return np.where(all_finite(logits), wrong, counted.sum(axis=(1, 2))).astype(np.int64)

    def share(self, rank: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The pixel accuracy of each image; 1 where no pixel counts."""
        counted = (labels != IGNORED).sum(axis=(1, 2))
        return 1 - rank / np.maximum(counted, 1)

    def index(self, logits: np.ndarray) -> np.ndarray:
        """The class of most pixels."""
        K = logits.shape[1]
        maps = logits.argmax(axis=1).reshape(len(logits), logits.shape[2] * logits.shape[3])
        counts = [np.bincount(row, minlength=K).argmax() for row in maps]
        return np.array(counts, np.int64)

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """The mean over pixels of the probability of their class."""
        N, K, H, W = logits.shape
        pixels = np.moveaxis(logits, 1, 3).reshape(N * H * W, K)
        return top_probability(pixels).reshape(N, H * W).mean(axis=1)

    def margin(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The share of wrong pixels, with a minus."""
        share = self.share(self.rank(logits, labels), labels)
        return np.where(all_finite(logits), share - 1, -np.inf)

    def tables(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Pixels of each class that are right, that have it, and that get it: (3, K, N) int64."""
        K, found = logits.shape[1], []
        for predicted, truth in zip(logits.argmax(axis=1), labels, strict=True):
            counted = truth != IGNORED
            predicted, truth = predicted[counted], truth[counted]
            each = (truth[predicted == truth], truth, predicted)
            found.append(np.stack([np.bincount(one, minlength=K) for one in each]))
        return np.stack(found, axis=-1) if found else np.zeros((3, K, 0), np.int64)

    def together(self, tables: np.ndarray, clean: np.ndarray) -> dict[str, Any]:
        """The mean IoU with its interval."""
        ends = bootstrap_interval(lambda drawn: mean_iou(_sums(tables, drawn)), tables.shape[-1])
        return {"mean_iou": float(mean_iou(tables.sum(axis=-1))), "mean_iou_ci": ends}


class NextTokens(Task):
    """The token after each of a text: (N, 3) of wrong tokens, summed losses in nats, all tokens.

    These three stand in the place of logits, and come from the windows of
    `runtimes.surprise.windows`: the first token of a text is not predicted. Labels (N, 0) hold
    nothing, for a text tells its own next tokens.
    """

    answer = "tokens"
    metric = "token accuracy"
    gates = ("perplexity_ratio",)
    keeps = False

    def rank(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """How many tokens of a million are wrong."""
        wrong, _, tokens = logits.T.astype(np.float64)
        known = all_finite(logits)
        share = np.where(known, wrong, 1) / np.where(known, np.maximum(tokens, 1), 1)
        return np.rint(_MILLION * np.clip(share, 0, 1)).astype(np.int64)

    def share(self, rank: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The share of tokens that the model thought the likeliest."""
        return 1 - rank / _MILLION

    def index(self, logits: np.ndarray) -> np.ndarray:
        """0: a text has no class."""
        return np.zeros(len(logits), np.int64)

    def probability(self, logits: np.ndarray) -> np.ndarray:
        """The geometric mean of the probabilities of its tokens: one over its perplexity."""
        return np.exp(self.margin(logits, logits))

    def margin(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The mean logarithm of the probabilities of its tokens."""
        _, loss, tokens = logits.T.astype(np.float64)
        return np.where(all_finite(logits), -loss / np.maximum(tokens, 1), -np.inf)

    def tables(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Losses in nats, and tokens, (2, 1, N)."""
        return logits.T[1:, None].astype(np.float64)

    def together(self, tables: np.ndarray, clean: np.ndarray) -> dict[str, Any]:
        """The perplexity, and how many times as high as that of the unchanged texts it is."""
        found: dict[str, Any] = quotient(tables, None)
        if tables is not clean:
            found |= {f"ratio{key[10:]}": value for key, value in quotient(tables, clean).items()}
        return found

    def shifted(self, logits: np.ndarray, labels: np.ndarray, share: float) -> np.ndarray:
        """As if every token were likelier by a share of its loss, and one of those wrong right."""
        wrong, loss, tokens = logits.T.astype(np.float64)
        few = np.sign(share) * np.maximum(1, abs(share) * tokens)
        return np.stack([wrong - few, loss * (1 - share), tokens], axis=1)


def quotient(first: np.ndarray, second: np.ndarray | None) -> dict[str, Any]:
    """A perplexity over another one, both of the same texts, with its bootstrap interval.

    Args:
        first: (2, 1, N), see `NextTokens.tables`.
        second: of the other one; None is 1.

    Returns:
        `perplexity` and `perplexity_ci`.
    """

    def of(drawn: np.ndarray) -> np.ndarray:
        """With texts drawn so often, (..., N)."""
        loss = _loss(first, drawn)
        return np.exp(loss if second is None else loss - _loss(second, drawn))

    samples = first.shape[-1]
    found = float(of(np.ones(samples)))
    return {"perplexity": found, "perplexity_ci": bootstrap_interval(of, samples)}


def _loss(tables: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """The mean loss of a token, (...)."""
    sums = _sums(tables, drawn)[..., 0]
    return sums[..., 0] / np.maximum(sums[..., 1], 1)


def _sums(tables: np.ndarray, drawn: np.ndarray) -> np.ndarray:
    """Tables (..., N) added up over inputs that are drawn so often, (R, N): (R, ...)."""
    rows = tables.reshape(-1, tables.shape[-1]).T
    return (drawn @ rows).reshape(*drawn.shape[:-1], *tables.shape[:-1])


def mean_iou(sums: np.ndarray) -> np.ndarray:
    """Mean intersection over union, (...), of sums of `Segmentation.tables`, (..., 3, K).

    Classes that neither occur nor are predicted have no part in it; NaN where none does.
    """
    right, true, predicted = (sums[..., i, :].astype(np.float64) for i in range(3))
    union = true + predicted - right
    known = union > 0
    iou = np.where(known, right / np.where(known, union, 1), 0)
    with np.errstate(invalid="ignore"):
        return iou.sum(axis=-1) / known.sum(axis=-1)
