"""How a model behaves around its first inputs: what `robustness.sanity.measure` measures."""

from dataclasses import dataclass

import numpy as np

SAMPLES = 32  # images that are asked
ALONE = 4  # of them one by one
CLIMBERS = 16  # of them pushed by gradient steps
STEPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Measured on the first n <= 32 inputs; NaN, or False, where something was not measured.

    Changes of logits are given relative to the spread of a sample's logits (median over samples).

    Attributes:
        constant: (1,) bool, different inputs got the same logits, to rounding.
        inner_gradient: (1,) bool, the PyTorch model takes gradients while it answers.
        batch_dependence: (n,) change of the served model's logits by what else is in the batch.
        torch_batch_dependence: (n,) the same of the PyTorch model.
        torch_change: (n,) change of the PyTorch model's logits when the same batch is repeated.
        torch_normalized: (n,) bool, the PyTorch model's outputs are probabilities.
        input_insensitive: (n,) bool, no logit of the PyTorch model (or of the served one, in fp32)
            changes at all when a few pixels move by 1e-4.
        zero_gradient: (n,) bool, the margin's gradient is zero, or not a number, in every pixel.
        gradient_ratio: (n,) change of the margin over a step of 1e-4 along the gradient's signs,
            divided by what the gradient promises: 1 for a smooth function.
        clean_margin: (n,) the PyTorch model's logit of the label minus the largest other one.
        single_step_drop: (n,) fall of that margin by one step of FGSM at eps 8/255.
        multi_step_drop: (n,) by eight steps, each a quarter of it.
        rescaled_drop: (n,) by eight steps against logits divided so that their spread is 10.
        holds_at_large_eps: (n,) bool, correct on the clean input and after such steps within
            eps 0.5.
    """

    constant: np.ndarray
    inner_gradient: np.ndarray
    batch_dependence: np.ndarray
    torch_batch_dependence: np.ndarray
    torch_change: np.ndarray
    torch_normalized: np.ndarray
    input_insensitive: np.ndarray
    zero_gradient: np.ndarray
    gradient_ratio: np.ndarray
    clean_margin: np.ndarray
    single_step_drop: np.ndarray
    multi_step_drop: np.ndarray
    rescaled_drop: np.ndarray
    holds_at_large_eps: np.ndarray


def diagnostics_cost(samples: int, *, on_texts: bool) -> int:
    """Model evaluations that `robustness.sanity.measure` takes at most, of so many samples."""
    asked, pushed = min(samples, SAMPLES), min(samples, CLIMBERS)
    mixed = 2 * asked + 1 + ALONE
    if on_texts:
        return mixed
    return 2 * (mixed + asked) + asked + 5 * asked + pushed * (3 * STEPS + 6)
