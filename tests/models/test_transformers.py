"""The transformers over patches and tokens against a plain forward pass."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import models
from models.attention.base import layers_of
from models.baselines import BaselineTransformer
from models.layers.block import DropPath, drop_path_rate
from models.transject import OrthogonalMap
from tests.models import plain_transformer as plain
from tests.models.small import small

TOKENS = {"vocab_size": 11, "seq_len": 9, "embed_dim": 16, "num_heads": 2, "depth": 2}
TOKENS |= {"num_classes": 3, "mlp_ratio": 2.0}
DEITS = ["deit_tiny", "deit_tiny_elliptical"]
SEQUENCES = ["lra_transformer", "lra_transformer_elliptical"]
BASELINES = ["transformer", "transformer_rezero", "transformer_orthogonal"]


def plain_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights, those of orthogonal attention by the names of ordinary attention."""
    w = dict(model.state_dict())
    for name in [key.removesuffix("qkv.bias") for key in w if key.endswith("qkv.bias")]:
        for part, count in (("qkv", 3), ("proj", 1)):
            keys = [f"{name}{part}.maps.{i}.parametrizations.weight.original" for i in range(count)]
            if keys[0] in w:
                w[f"{name}{part}.weight"] = torch.cat([plain.cayley(w[key]) for key in keys])
    return w


def plain_baseline(w: dict[str, Tensor], config: Any, row: Tensor, real: Tensor) -> Tensor:
    x = w["token_embed.weight"][row[real]] + plain.sinusoidal(torch.arange(len(row)), 16)[real]
    for name in ("blocks.0", "blocks.1"):
        if config.variant == "rezero":
            alpha = w[f"{name}.alpha"]
            x = x + alpha * plain.attention(x, w, f"{name}.attn", 2)[0]
            x = x + alpha * plain.mlp(x, w, f"{name}.mlp")
        else:
            x, _ = plain.pre_norm_block(x, w, name, 2)
    x = x if config.variant == "rezero" else plain.norm(x, w, "norm")
    return plain.linear(plain.pool(x, config.pooling), w, "head")


def plain_sequence(w: dict[str, Tensor], config: Any, row: Tensor, real: Tensor) -> Tensor:
    x = w["token_embed.weight"][row[real]] + w["pos_embed"][0, : len(row)][real]
    x = torch.cat([w["cls_token"][0], x]) if config.pooling == "cls" else x
    v = None
    for i in range(config.depth):
        previous = v if config.first_layer == 2 and i == config.depth - 1 else None
        x, v = plain.pre_norm_block(x, w, f"blocks.{i}", 2, previous)
    x = plain.pool(plain.norm(x, w, "norm"), config.pooling)
    hidden = plain.linear(x, w, "head.0")
    return plain.linear(hidden * (hidden > 0), w, "head.2")


@pytest.mark.parametrize(
    ("name", "pooling", "depth"),
    [
        *((name, pooling, 2) for name in BASELINES for pooling in ("mean", "max")),
        *(
            (name, pooling, depth)
            for name in SEQUENCES
            for pooling in ("mean", "max", "cls")
            for depth in (2, 3)
        ),
    ],
)
def test_forward_of_tokens_is_the_formula(name: str, pooling: str, depth: int) -> None:
    model, (tokens, mask) = small(name, pooling=pooling, depth=depth), plain.batch()
    formula = plain_baseline if name in BASELINES else plain_sequence
    for given in (mask, None):
        real = torch.ones_like(mask) if given is None else given
        with torch.no_grad():
            w = plain_weights(model)
            samples = zip(tokens, real, strict=True)
            expected = torch.stack([formula(w, model.config, *sample) for sample in samples])
            assert (model(tokens, given) - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("name", DEITS)
@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize(
    ("img_size", "patch_size", "in_chans", "depth"),
    [(28, 7, 1, 3), (8, 1, 2, 2), (15, 5, 2, 2), (32, 16, 2, 2), (6, 6, 2, 2)],
)
def test_logits_of_images_are_the_published_ones(
    name: str, distilled: bool, img_size: int, patch_size: int, in_chans: int, depth: int
) -> None:
    sizes = {"img_size": img_size, "patch_size": patch_size, "in_chans": in_chans, "depth": depth}
    model = small(name, **sizes, distilled=distilled)
    w = model.state_dict()
    images = torch.rand(2, in_chans, img_size, img_size, dtype=torch.float64)
    for image, *found in zip(images, model(images), *model.heads(images), strict=True):
        x = plain.patches(image, w, model.config)
        prefix = [w[key][0] for key in ("cls_token", "dist_token") if key in w]
        x, v = torch.cat([*prefix, x]) + w["pos_embed"][0], None
        for i in range(depth):
            v_prev = v if name.endswith("elliptical") else None
            x, v = plain.pre_norm_block(x, w, f"blocks.{i}", 2, v_prev)
        x = plain.norm(x, w, "norm")
        heads = [plain.linear(x[i], w, f"head{'_dist' * i}") for i in range(1 + distilled)]
        mean = torch.stack(heads).mean(0)
        for logits, expected in zip(found, [mean, *heads], strict=True):
            assert (logits - expected).abs().max() < 1e-10


# Attention and MLP of a block of the baselines, and of LRA with its norms.
BASE = 4 * 512 * 512 + 4 * 512 + 2 * 512 * 2048 + 2048 + 512
LRA = 4 * 64 * 64 + 4 * 64 + 2 * 64 * 128 + 128 + 64 + 2 * 2 * 64
# Their embedding and what follows the last block.
AROUND = 30522 * 512 + 2 * 512 + 2
AROUND_LRA = (256 + 4096) * 64 + 2 * 64 + 64 * 128 + 128 + 2 * 128 + 2


@pytest.mark.parametrize(
    ("name", "heads", "parameters", "distilled"),
    [
        ("deit_tiny", 3, 5_717_416, 5_910_800),
        ("deit_small", 6, 22_050_664, 22_436_432),
        ("deit_base", 12, 86_567_656, 87_338_192),
        ("fan_tiny", 4, 7_284_976, None),  # within a hundredth of the 7.3 M and 28.0 M stated
        ("fan_small", 8, 28_275_448, None),
        ("lra_transformer", 2, AROUND_LRA + 2 * LRA, None),
        ("transformer", 8, AROUND + 6 * (BASE + 4 * 512) + 2 * 512, None),
        ("transformer_orthogonal", 8, AROUND + 6 * (BASE + 4 * 512) + 2 * 512, None),
        ("transformer_rezero", 8, AROUND + 6 * (BASE + 1), None),
    ],
)
def test_sizes_are_the_published_ones(
    name: str, heads: int, parameters: int, distilled: int | None
) -> None:
    def sizes(name: str, **overrides: object) -> dict[str, int]:
        with torch.device("meta"):
            model = models.build(name, **overrides)
        attention = {layer.num_heads for layer in layers_of(model)}
        assert attention == {heads}
        return {key: parameter.numel() for key, parameter in model.named_parameters()}

    counts = sizes(name)
    assert sum(counts.values()) == parameters
    if name not in BASELINES:
        assert sum(sizes(f"{name}_elliptical").values()) == parameters
    if distilled is not None:
        with_token = sizes(name, distilled=True)
        assert sum(with_token.values()) == distilled
        added = {"dist_token", "head_dist.weight", "head_dist.bias"}
        assert with_token.keys() - counts.keys() == added


@pytest.mark.parametrize(
    ("name", "overrides", "millions"),
    [  # TJ table 3a, as its decimal points are meant
        ("transformer", {}, 19.01),
        ("transformer", {"mlp_ratio": 1.0}, 9.56),
        ("transject", {"num_experts": 1}, 6.62),
        ("transject", {"num_experts": 8}, 28.68),
    ],
)
def test_sizes_with_bytes_are_those_of_the_transject_paper(
    name: str, overrides: dict[str, Any], millions: float
) -> None:
    with torch.device("meta"):
        model = models.build(name, vocab_size=256, **overrides)
    count = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert count == pytest.approx(millions, abs=0.05)


@pytest.mark.parametrize(
    ("names", "overrides"),
    [(DEITS, {}), (SEQUENCES, {}), (SEQUENCES, {"pooling": "cls"}), (SEQUENCES, {"towers": 2})],
)
def test_both_attentions_share_names_and_shapes_but_not_the_function(
    names: list[str], overrides: dict[str, Any]
) -> None:
    dot, elliptical = (small(name, **overrides) for name in names)
    elliptical.load_state_dict(dot.state_dict())
    dot.load_state_dict(elliptical.state_dict())
    given = (torch.rand(2, 3, 12, 12).double(),) if names == DEITS else plain.batch()
    if "towers" in overrides:
        given = tuple(each[:4].view(2, 2, 6) for each in given)
    assert (dot(*given) - elliptical(*given)).abs().max() > 1e-3


def test_drop_path_leaves_out_whole_samples_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    layer = DropPath(0.25)
    x = torch.ones(4000, 2, 3)
    dropped = layer.train()(x)
    assert dropped.unique().tolist() == pytest.approx([0, 4 / 3])
    assert (dropped.amin((1, 2)) == dropped.amax((1, 2))).all()
    assert dropped.mean() == pytest.approx(1, abs=0.03)
    assert layer.eval()(x) is x
    rates = [drop_path_rate(0.3, layer, 4) for layer in range(1, 5)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3]) and drop_path_rate(0.3, 1, 1) == 0


def test_rezero_starts_as_the_identity_without_norms() -> None:
    model = cast(BaselineTransformer, models.build("transformer_rezero", **TOKENS)).eval()
    assert not any(isinstance(layer, nn.LayerNorm) for layer in model.modules())
    x = torch.randn(2, 5, 16)
    for block in model.blocks:
        assert torch.equal(block(x)[0], x) and block.alpha.shape == ()


def maps(model: nn.Module) -> list[Tensor]:
    """The orthogonal matrices, found to be so."""
    found = [layer.weight for layer in model.modules() if isinstance(layer, OrthogonalMap)]
    for weight in found:
        error = weight.T @ weight - torch.eye(len(weight))
        assert weight.dtype == torch.float32
        assert torch.linalg.matrix_norm(error, 2) < 1e-5
    return found


@pytest.mark.parametrize("name", BASELINES)
def test_training_learns_whether_a_token_occurs_and_keeps_maps_orthogonal(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, **TOKENS | {"num_classes": 2})
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(60):
        tokens = torch.randint(0, 11, (32, 6))
        loss = F.cross_entropy(model(tokens), (tokens == 7).any(1).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-10:]) / 10 < 0.6 * losses[0]
    assert len(maps(model)) == (8 if name == "transformer_orthogonal" else 0)


def test_autocast_never_rounds_the_maps() -> None:
    model = small("transformer_orthogonal").float()
    assert maps(OrthogonalMap(512))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [layer.weight for layer in model.modules() if isinstance(layer, OrthogonalMap)]
        assert model(*plain.batch()).isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(found, maps(model), strict=True))
