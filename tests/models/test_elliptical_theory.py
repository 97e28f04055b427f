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
@pytest.mark.parametrize("seed", range(3))
def test_lemma_1(scaling: Scaling, estimator: Estimator, seed: int) -> None:
    q, k, _, m = one_head(scaling, estimator, seed)
    kappa = _kappa(k)
    for query in q:
        a = weights(query[None], k, m)[0]
        jacobian = torch.func.jacrev(lambda q: weights(q[None], k, m)[0])(query)
        for j in range(N):
            for i in range(D):
                mean = sum(a[s] * k[s, i] for s in range(N))
                exact = m[i] / math.sqrt(D) * a[j] * (k[j, i] - mean)
                assert abs(jacobian[j, i] - exact) <= 1e-10
                assert abs(jacobian[j, i]) <= m[i] / math.sqrt(D) * kappa[i][j] + 1e-12


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("size", [1e-3, 1.0, 10.0])
def test_proposition_1(scaling: Scaling, estimator: Estimator, size: float) -> None:
    for seed in range(3):
        q, k, v, m = one_head(scaling, estimator, seed)
        kappa = _kappa(k)
        factor = sum(
            math.sqrt(sum(float(kappa[i][j] * m[i]) ** 2 for i in range(D)))
            / math.sqrt(D)
            * float(v[j].norm())
            for j in range(N)
        )
        for query in q:
            step = size * torch.randn(D, dtype=torch.float64)
            both = weights(torch.stack((query, query + step)), k, m) @ v
            assert (both[1] - both[0]).norm() <= factor * step.norm()


def _kappa(k: Tensor) -> list[list[float]]:
    """kappa_ij of EA eq. 20: a quarter of |k_ji| and all other |k_si|."""
    size = k.abs().tolist()
    return [
        [size[j][i] / 4 + sum(size[s][i] for s in range(N) if s != j) for j in range(N)]
        for i in range(D)
    ]
