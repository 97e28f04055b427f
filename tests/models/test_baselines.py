from typing import cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import models
from models.attention.elliptical import Attention
from models.baselines import BaselineTransformer
from models.layers.block import Mlp
from models.transject import OrthogonalMap
from tests.models import plain_transformer as plain

NAMES = ["transformer", "transformer_rezero", "transformer_orthogonal"]
SMALL = {"vocab_size": 11, "seq_len": 9, "embed_dim": 16, "depth": 2, "num_heads": 2}
SMALL |= {"mlp_ratio": 2.0, "num_classes": 3}


def small(name: str, **overrides: object) -> BaselineTransformer:
    """A small model whose alphas and biases are not zero."""
    torch.manual_seed(0)
    model = cast(BaselineTransformer, models.build(name, **SMALL | overrides)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights, those of orthogonal attention by the names of ordinary attention."""
    w = dict(model.state_dict())
    for name in [key.removesuffix("qkv.bias") for key in w if key.endswith("qkv.bias")]:
        for part, count in (("qkv", 3), ("proj", 1)):
            keys = [f"{name}{part}.maps.{i}.parametrizations.weight.original" for i in range(count)]
            if keys[0] in w:
                w[f"{name}{part}.weight"] = torch.cat([plain.cayley(w[key]) for key in keys])
    return w


@torch.no_grad()
def plain_logits(model: BaselineTransformer, tokens: Tensor, mask: Tensor) -> Tensor:
    """The forward pass in float64, one sequence at a time, its padding left out."""
    w = {key: value.double() for key, value in plain_weights(model.double()).items()}
    table = torch.zeros(6, 16, dtype=torch.float64)
    for p in range(6):
        for k in range(8):
            angle = torch.tensor(p / 10000 ** (2 * k / 16), dtype=torch.float64)
            table[p, 2 * k], table[p, 2 * k + 1] = angle.sin(), angle.cos()
    logits = []
    for row, real in zip(tokens, mask, strict=True):
        x = w["token_embed.weight"][row[real]] + table[real]
        for name in ("blocks.0", "blocks.1"):
            if model.config.variant == "rezero":
                alpha = w[f"{name}.alpha"]
                x = x + alpha * plain.attention(x, w, f"{name}.attn", 2)[0]
                x = x + alpha * plain.mlp(x, w, f"{name}.mlp")
            else:
                x, _ = plain.pre_norm_block(x, w, name, 2)
        x = x if model.config.variant == "rezero" else plain.norm(x, w, "norm")
        logits.append(plain.linear(plain.pool(x, model.config.pooling), w, "head"))
    return torch.stack(logits)


def maps(model: nn.Module) -> list[Tensor]:
    return [layer.weight for layer in model.modules() if isinstance(layer, OrthogonalMap)]


def deviation(weight: Tensor) -> float:
    """The spectral norm of W'W - I."""
    error = weight.T @ weight - torch.eye(len(weight))
    return float(torch.linalg.matrix_norm(error, 2).detach())


@pytest.fixture(scope="module", params=NAMES)
def trained(request: pytest.FixtureRequest) -> tuple[BaselineTransformer, float, float]:
    """A model trained to tell whether token 7 occurs, with its losses before and after."""
    torch.manual_seed(0)
    model = cast(BaselineTransformer, models.build(request.param, **SMALL | {"num_classes": 2}))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        tokens = torch.randint(0, 11, (32, 6))
        loss = F.cross_entropy(model(tokens), (tokens == 7).any(1).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model.eval(), losses[0], sum(losses[-10:]) / 10


@pytest.mark.parametrize("pooling", ["mean", "max"])
@pytest.mark.parametrize("name", NAMES)
def test_forward_is_the_formula(name: str, pooling: str) -> None:
    model, (tokens, mask) = small(name, pooling=pooling), plain.batch()
    for given in (mask, None):
        real = torch.ones_like(mask) if given is None else given
        with torch.no_grad():
            single = model.float()(tokens, given)
            expected = plain_logits(model, tokens, real)
            assert (model(tokens, given) - expected).abs().max() <= 1e-10
        assert (single - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


def test_sizes_are_those_of_the_paper() -> None:
    with torch.device("meta"):
        built = {name: cast(BaselineTransformer, models.build(name)) for name in NAMES}
    for model in built.values():
        assert len(model.blocks) == 6 and model.token_embed.weight.shape == (30522, 512)
        heads = [layer.num_heads for layer in model.modules() if isinstance(layer, Attention)]
        assert heads == [8] * 6
        hidden = [layer.fc1.out_features for layer in model.modules() if isinstance(layer, Mlp)]
        assert hidden == [2048] * 6
        assert model.head.weight.shape == (2, 512)
    block = 4 * 512 * 512 + 4 * 512 + 2 * 512 * 2048 + 2048 + 512
    counts = [sum(p.numel() for p in model.parameters()) for model in built.values()]
    outside = 30522 * 512 + 2 * 512 + 2
    plain_count = outside + 6 * (block + 4 * 512) + 2 * 512
    assert counts == [plain_count, outside + 6 * (block + 1), plain_count]


def test_rezero_starts_as_the_identity_without_norms() -> None:
    model = cast(BaselineTransformer, models.build("transformer_rezero", **SMALL)).eval()
    assert not any(isinstance(layer, nn.LayerNorm) for layer in model.modules())
    x = torch.randn(2, 5, 16)
    for block in model.blocks:
        assert torch.equal(block(x)[0], x) and block.alpha.shape == ()


def test_a_few_steps_of_training_learn(trained: tuple[BaselineTransformer, float, float]) -> None:
    _, before, after = trained
    assert after < 0.6 * before


def test_maps_of_trained_attention_are_orthogonal(
    trained: tuple[BaselineTransformer, float, float],
) -> None:
    model, _, _ = trained
    found = maps(model)
    assert len(found) == (8 if model.config.variant == "orthogonal" else 0)
    assert all(weight.dtype == torch.float32 and deviation(weight) < 1e-5 for weight in found)


def test_maps_of_any_weights_are_orthogonal() -> None:
    torch.manual_seed(0)
    found = [*maps(small("transformer_orthogonal")), OrthogonalMap(512).weight]
    assert all(deviation(weight) < 1e-5 for weight in found)


def test_autocast_never_rounds_the_maps() -> None:
    model = small("transformer_orthogonal")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = maps(model)
        assert model(*plain.batch()).isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(found, maps(model), strict=True))
