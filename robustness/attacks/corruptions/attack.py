"""Common corruptions, at severities: noise, blur, weather, not aimed at the model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from pydantic import BeforeValidator, Field, field_validator

from core.names import nearest
from robustness.attacks.base import (
    Attack,
    Batch,
    Budget,
    Info,
    Search,
    content_of,
    distinct,
    in_range,
    input_seed,
)
from robustness.parsing import MOST, as_list

if TYPE_CHECKING:
    from robustness.target import Target

CORRUPTIONS = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
)
"""The fifteen that the mean corruption error is defined on."""
EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
"""The four that ImageNet-C keeps for validation."""

_KNOWN = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
_SEVERITIES = [1, 2, 3, 4, 5]
Severity = Annotated[int, Field(strict=True, ge=1, le=5)]


class Corruptions(Attack, frozen=True):
    """What weather, lenses, sensors and files do to images."""

    info: ClassVar[Info] = Info(
        title="Common corruptions",
        paper="Hendrycks and Dietterich 2019",
        references=("arXiv:1903.12261",),
        what="noise, blur, weather: not aimed at the model",
        access="none",
        budget="severities",
        role="corruption",
    )
    name: Literal["corruptions"] = "corruptions"
    names: Annotated[list[str], Field(max_length=MOST)] = Field(
        default=list(CORRUPTIONS),
        description="which corruptions, such as fog; default the 15 of ImageNet-C",
        json_schema_extra={"of": {"enum": list(_KNOWN)}},
    )
    severities: Annotated[
        list[Severity], Field(min_length=1, max_length=MOST), BeforeValidator(as_list)
    ] = Field(default=_SEVERITIES, description="severities from 1 to 5")

    @field_validator("names", "severities")
    @classmethod
    def _distinct(cls, values: list[str] | list[int]) -> list[str] | list[int]:
        distinct("values", values)
        return values

    @field_validator("names")
    @classmethod
    def _known_names(cls, names: list[str]) -> list[str]:
        if not names:
            raise ValueError("names must hold at least one corruption")
        for name in names:
            if name not in _KNOWN:
                raise ValueError(
                    f"names: unknown corruption {name[:40]!r}; {nearest(name, _KNOWN)}"
                )
        return names

    def budgets(self) -> list[Budget]:
        """Every corruption at every severity."""
        return [
            Budget(kind="corruption", value=float(severity), text=f"{name}:{severity}")
            for name in self.names
            for severity in self.severities
        ]

    def cost(self, num_classes: int) -> int:
        """One answer."""
        return 1

    @property
    def scorings(self) -> int:
        """The one answer is the score."""
        return 0

    def notes(self, num_classes: int) -> Iterator[str]:
        """Whether its figures stand beside published ones."""
        if {*self.names} != {*CORRUPTIONS} or {*self.severities} != {*_SEVERITIES}:
            yield (
                "The mean is over the corruptions and severities asked for, not over the 15 at 5 "
                "severities of ImageNet-C, so it cannot be compared with published figures."
            )

    def seeds(self, seed: int, budget: Budget, inputs: np.ndarray | Sequence[str]) -> list[int]:
        """See `Attack.seeds`; each severity draws anew."""
        pixels = _in_8bit(np.asarray(inputs))
        return [input_seed(seed, budget.text, content_of(image)) for image in pixels]

    def run(self, target: "Target", batch: Batch, budget: Budget, search: Search) -> Batch:
        """See `redrawn` and `Attack.run`."""
        inputs = self.redrawn(batch.images, budget, search.seeds)
        return Batch(inputs=inputs, labels=batch.labels)

    def redrawn(self, images: np.ndarray, budget: Budget, seeds: Sequence[int]) -> np.ndarray:
        """Corrupt images (B, C, H, W) at the model's size, in 8 bit.

        Draws depend on the seed, the image, the corruption and its severity.
        """
        from robustness.attacks.corruptions.corrupt import corrupt

        name, severity = split(budget)
        made = [
            corrupt(image, name, severity, np.random.default_rng(seed))
            for image, seed in zip(_in_8bit(images), seeds, strict=True)
        ]
        return np.stack(made).astype(np.float32) / np.float32(255)

    def allowed(
        self, clean: Batch, made: Batch, budget: Budget, target: "Target", seeds: Sequence[int]
    ) -> np.ndarray:
        """Any image."""
        return in_range(made.images)

    def describe(self, budget: Budget) -> str:
        """See `Attack.describe`."""
        name, severity = split(budget)
        return f"under {name.replace('_', ' ')} at severity {severity}"


def _in_8bit(images: np.ndarray) -> np.ndarray:
    return np.rint(images * 255).astype(np.uint8)


def split(budget: Budget) -> tuple[str, int]:
    """Name and severity of a corruption."""
    name, severity = budget.text.split(":")
    return name, int(severity)


def mean_corruption_error(
    errors: Mapping[str, Sequence[float]], reference_errors: Mapping[str, Sequence[float]]
) -> float:
    """Mean over corruptions of a model's error, summed over severities, over that of a reference.

    Args:
        errors: for each corruption the share of wrong answers at each severity.
        reference_errors: the same of the reference, above 0 for every corruption.

    Returns:
        1 if the model is as bad as the reference. (The paper writes it in percent.)

    Source: Hendrycks & Dietterich 2019, section 4.1; there AlexNet is the reference.
    """
    return sum(sum(own) / sum(reference_errors[name]) for name, own in errors.items()) / len(errors)
