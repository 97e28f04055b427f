"""What a model was found to be like by asking it about itself: see `robustness.sanity.probes`."""

from dataclasses import dataclass

import numpy as np

SAMPLES = 32  # images that are asked
ALONE = 4  # of them one by one
CLIMBERS = 16  # of them pushed by gradient steps
STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Findings on the first n <= 32 inputs; NaN, or False, where something was not asked.

    Changes of logits are given relative to the spread of a sample's logits (median over samples).

    Attributes:
        constant: (1,) bool, different inputs got the same logits, to rounding.
        inner_gradient: (1,) bool, the twin takes gradients while it answers.
        company: (n,) change of the served model's logits by what else is in the batch.
        twin_company: (n,) the same of the twin.
        twin_repeat: (n,) change of the twin's logits when the same batch is asked again.
        twin_normalised: (n,) bool, the twin's outputs are probabilities.
        still: (n,) bool, no logit of the twin (or of the served model, in fp32) changes at all when
            a few pixels move by 1e-4.
        flat: (n,) bool, the gradient of the margin is zero, or not a number, in every pixel.
        slope: (n,) change of the margin over a step of 1e-4 along the gradient's signs, divided by
            what the gradient promises: 1 for a smooth function.
        clean_margin: (n,) the twin's logit of the label minus the largest other one.
        one_step: (n,) fall of that margin by one step of FGSM at eps 8/255.
        many_steps: (n,) by eight steps, each a quarter of it.
        rescaled: (n,) by eight steps against logits divided so that their spread is 10.
        wide: (n,) bool, right on the clean input and still after such steps within eps 0.5.
    """

    constant: np.ndarray
    inner_gradient: np.ndarray
    company: np.ndarray
    twin_company: np.ndarray
    twin_repeat: np.ndarray
    twin_normalised: np.ndarray
    still: np.ndarray
    flat: np.ndarray
    slope: np.ndarray
    clean_margin: np.ndarray
    one_step: np.ndarray
    many_steps: np.ndarray
    rescaled: np.ndarray
    wide: np.ndarray


def probe_cost(samples: int, *, on_texts: bool) -> int:
    """Model evaluations that `robustness.sanity.probes` takes at most, of so many samples."""
    asked, pushed = min(samples, SAMPLES), min(samples, CLIMBERS)
    company = 2 * asked + 1 + ALONE
    if on_texts:
        return company
    return 2 * (company + asked) + asked + 5 * asked + pushed * (3 * STEPS + 6)
