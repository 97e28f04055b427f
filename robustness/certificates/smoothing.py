"""Randomized smoothing: radii within which a majority vote under noise provably stays the same.

What is certified is not the model itself but the classifier that answers with the class that the
model gives most often to an image under normal noise. Whatever moves an image by less than the
radius, in l2 and in units of pixels in [0, 1], leaves that answer as it is; of images with such a
radius a share of `alpha` may be wrong, because the vote was sampled. Noisy inputs leave [0, 1], as
the proof demands.

Source: Cohen, Rosenfeld & Kolter 2019, algorithm CERTIFY.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from robustness.attacks.base import (
    Batch,
    Budget,
    Info,
    Search,
    check_images,
    distinct_numbers,
)
from robustness.certificates.base import Certificate
from robustness.parsing import Count, Radii, Radius, parse_eps

if TYPE_CHECKING:
    from robustness.target import Target

SELECTION = 100
"""Noisy copies that choose the class, beside those that count its votes."""
_BATCH = 256  # noisy copies that are evaluated at once, at most


class Smoothing(Certificate, frozen=True):
    """What a majority vote over noisy copies provably withstands."""

    info: ClassVar[Info] = Info(
        title="Randomized smoothing",
        paper="Cohen et al. 2019",
        references=("arXiv:1902.02918",),
        what="no attack but a proof, for a vote over noisy copies",
        access="label",
        budget="sigma",
        role="certificate",
    )
    name: Literal["smoothing"] = "smoothing"
    sigma: Radii = Field(
        default=["0.25"],
        description="standard deviations of the noise, where pixels lie in [0, 1]",
        json_schema_extra={"of": {"type": "number", "minimum": 0, "maximum": 10}},
    )
    samples: Count = Field(default=1000, description="noisy copies of an image")
    alpha: Radius = Field(
        default="0.001",
        description="probability that a certificate is wrong",
        json_schema_extra={"of": {"type": "number", "minimum": 0, "maximum": 1}},
    )

    @field_validator("sigma")
    @classmethod
    def _known_sigma(cls, sigma: list[str]) -> list[str]:
        return distinct_numbers("sigma", sigma, limit=10.0)

    @field_validator("alpha")
    @classmethod
    def _known_alpha(cls, alpha: str) -> str:
        if parse_eps(alpha, name="alpha") == 1:
            raise ValueError(f"alpha must lie in (0, 1), got {alpha!r}")
        return alpha

    def cost(self, num_classes: int) -> int:
        """All noisy copies, those that choose the class included."""
        return self.samples + 2 + SELECTION

    @property
    def scorings(self) -> int:
        """A certificate is not scored again."""
        return 0

    def notes(self, num_classes: int) -> Iterator[str]:
        """How far certificates can reach, were all noisy copies answered alike."""
        from scipy import special

        reach = special.ndtri(parse_eps(self.alpha, name="alpha") ** (1 / self.samples))
        yield (
            f"Smoothing with {self.samples:,} noisy copies cannot certify a radius above "
            f"{reach:.2f} sigma; 100,000 copies, as in the paper, reach 3.81 at alpha 0.001."
        )

    def certify(
        self, target: "Target", batch: Batch, budget: Budget, search: Search
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Certificate.certify`; an image's noise comes from its own seed alone.

        An answer that is not finite is a vote for no class.

        Source: Cohen et al. 2019, theorem 1 and CERTIFY.
        """
        from scipy import special  # with what imports it, half a second that a spec does not need

        from core.stats import lower_bound

        check_images(batch, search.seeds)
        images, sigma = batch.images, budget.value
        alpha = parse_eps(self.alpha, name="alpha")
        index = np.full(len(images), -1, np.int64)
        radius = np.zeros(len(images))
        for i, (image, seed) in enumerate(zip(images, search.seeds, strict=True)):
            noisy = _noisy_batches(image, sigma, seed, SELECTION + self.samples)
            votes = np.concatenate([_votes(target.predict(x, search.meter)) for x in noisy])
            first = votes[:SELECTION]
            if not (first >= 0).any():
                continue
            chosen = int(np.bincount(first[first >= 0]).argmax())
            hits = int((votes[SELECTION:] == chosen).sum())
            share = lower_bound(hits, self.samples, alpha=alpha)
            if share > 0.5:
                index[i], radius[i] = chosen, sigma * special.ndtri(share)
        return index, radius

    def redrawn(self, images: np.ndarray, budget: Budget, seeds: Sequence[int]) -> np.ndarray:
        """The first noisy copy of each image, cut to the range of pixels; see `Attack.redrawn`."""
        copies = [
            next(_noisy_batches(image, budget.value, seed, 1))
            for image, seed in zip(images, seeds, strict=True)
        ]
        return np.concatenate(copies).clip(0, 1)


def _noisy_batches(image: np.ndarray, sigma: float, seed: int, count: int) -> Iterator[np.ndarray]:
    draw = np.random.default_rng(seed)
    for start in range(0, count, _BATCH):
        size = (min(_BATCH, count - start), *image.shape)
        yield image + np.float32(sigma) * draw.standard_normal(size, dtype=np.float32)


def _votes(logits: np.ndarray) -> np.ndarray:
    """The class of each input, -1 where a logit is not finite."""
    return np.where(np.isfinite(logits).all(axis=1), logits.argmax(axis=1), -1)
