"""What the paper proves of elliptical attention, on random inputs in float64."""

import math

import pytest
import torch
from torch import Tensor

from models.attention.elliptical import Attention
from models.attention.metric import ESTIMATORS, SCALINGS, Estimator, Scaling, attention_weights

N, D = 6, 4


def one_head(scaling: Scaling, estimator: Estimator, seed: int) -> tuple[Tensor, ...]:
    """Queries, keys, values (N, D) and the metric (D,) of a layer with random weights."""
    torch.manual_seed(seed)
    layer = Attention(D, 1, elliptical=True, scaling=scaling, estimator=estimator, seed=seed)
    layer = layer.double().requires_grad_(False)
    x, v_prev = 3 * torch.randn(1, N, D).double(), torch.randn(1, 1, N, D).double()
    q, k, v = layer.project(x, None, None)
    m = layer.metric(q, k, v, v_prev)
    return q[0, 0], k[0, 0], v[0, 0], m[0, 0, 0]


def weights(q: Tensor, k: Tensor, m: Tensor) -> Tensor:
    return attention_weights((q * m)[None, None], k[None, None], None)[0, 0]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))]
)
def test_lemma_1_and_proposition_1(scaling: Scaling, estimator: Estimator, seed: int) -> None:
    q, k, v, m = one_head(scaling, estimator, seed)
    kappa = _kappa(k)
    bounds = m[:, None] / math.sqrt(D) * kappa  # (D, N)
    for query in q:
        a = weights(query[None], k, m)[0]
        jacobian = torch.func.jacrev(lambda q: weights(q[None], k, m)[0])(query)
        exact = m / math.sqrt(D) * a[:, None] * (k - a @ k)
        assert (jacobian - exact).abs().max() <= 1e-10
        assert (jacobian.abs() <= bounds.T + 1e-12).all()
        for size in (1e-3, 1.0, 10.0):
            step = size * torch.randn(D, dtype=torch.float64)
            both = weights(torch.stack((query, query + step)), k, m) @ v
            assert (both[1] - both[0]).norm() <= bounds.norm(dim=0) @ v.norm(dim=1) * step.norm()


def _kappa(k: Tensor) -> Tensor:
    """kappa_ij (D, N) of EA eq. 20: a quarter of |k_ji| and all other |k_si|."""
    size = k.abs().T
    return size.sum(1, keepdim=True) - 0.75 * size
