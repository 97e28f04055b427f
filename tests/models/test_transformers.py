"""The transformers over patches and tokens against a forward pass written with loops."""

from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import models
from models.attention.elliptical import Attention
from models.baselines import BaselineTransformer
from models.deit import DeiT
from models.layers.block import DropPath, Mlp, drop_path_rate
from models.transject import OrthogonalMap
from tests.models import plain_transformer as plain

DEIT = {"img_size": 28, "patch_size": 7, "in_chans": 1, "num_classes": 10, "embed_dim": 32}
DEIT |= {"num_heads": 2, "depth": 3, "mlp_ratio": 2.0}
TOKENS = {"vocab_size": 11, "seq_len": 9, "embed_dim": 16, "num_heads": 2, "num_classes": 3}
TOKENS |= {"depth": 2, "mlp_ratio": 2.0}
DEITS = ["deit_tiny", "deit_tiny_elliptical"]
SEQUENCES = ["lra_transformer", "lra_transformer_elliptical"]
BASELINES = ["transformer", "transformer_rezero", "transformer_orthogonal"]


def small(name: str, **overrides: Any) -> nn.Module:
    """A small model whose weights are large enough for every part to matter."""
    torch.manual_seed(0)
    model = models.build(name, **(DEIT if name in DEITS else TOKENS) | overrides).eval()
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


def sinusoidal(length: int, width: int) -> Tensor:
    table = torch.zeros(length, width, dtype=torch.float64)
    for p in range(length):
        for k in range(width // 2):
            angle = torch.tensor(p / 10000 ** (2 * k / width), dtype=torch.float64)
            table[p, 2 * k], table[p, 2 * k + 1] = angle.sin(), angle.cos()
    return table


def plain_baseline(w: dict[str, Tensor], config: Any, row: Tensor, real: Tensor) -> Tensor:
    x = w["token_embed.weight"][row[real]] + sinusoidal(len(row), 16)[real]
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
        previous = v if config.elliptical and i == config.depth - 1 else None
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
            single = model.float()(tokens, given)
            w = {key: value.double() for key, value in plain_weights(model.double()).items()}
            samples = zip(tokens, real, strict=True)
            expected = torch.stack([formula(w, model.config, *sample) for sample in samples])
            assert (model(tokens, given) - expected).abs().max() <= 1e-10
        assert (single - expected).abs().max() <= 1e-5 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("name", DEITS)
@pytest.mark.parametrize("distilled", [False, True])
def test_forward_of_images_is_the_published_one(name: str, distilled: bool) -> None:
    model = small(name, distilled=distilled).double()
    w = model.state_dict()
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)
    patches = F.unfold((images - 0.5) / 0.5, 7, stride=7).transpose(1, 2)
    for image, logits in zip(patches, model(images), strict=True):
        x = image @ w["patch_embed.proj.weight"].flatten(1).T + w["patch_embed.proj.bias"]
        prefix = [w[key][0] for key in ("cls_token", "dist_token") if key in w]
        x, v = torch.cat([*prefix, x]) + w["pos_embed"][0], None
        for i in range(3):
            v_prev = v if name.endswith("elliptical") else None
            x, v = plain.pre_norm_block(x, w, f"blocks.{i}", 2, v_prev)
        x = plain.norm(x, w, "norm")
        expected = plain.linear(x[0], w, "head")
        if distilled:
            expected = (expected + plain.linear(x[1], w, "head_dist")) / 2
        assert (logits - expected).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("name", "parameters", "distilled"),
    [
        ("deit_tiny", 5_717_416, 5_910_800),
        ("deit_small", 22_050_664, 22_436_432),
        ("deit_base", 86_567_656, 87_338_192),
        ("fan_tiny", 7_284_976, None),  # within a hundredth of the 7.3 M and 28.0 M stated
        ("fan_small", 28_275_448, None),
    ],
)
def test_parameter_count_is_the_published_one(
    name: str, parameters: int, distilled: int | None
) -> None:
    def sizes(name: str, **overrides: object) -> dict[str, int]:
        with torch.device("meta"):
            model = models.build(name, **overrides)
        return {key: parameter.numel() for key, parameter in model.named_parameters()}

    counts = sizes(name)
    assert sum(counts.values()) == sum(sizes(f"{name}_elliptical").values()) == parameters
    if distilled is not None:
        with_token = sizes(name, distilled=True)
        assert sum(with_token.values()) == distilled
        added = {"dist_token", "head_dist.weight", "head_dist.bias"}
        assert with_token.keys() - counts.keys() == added


def test_sizes_of_the_baselines_are_those_of_the_paper() -> None:
    with torch.device("meta"):
        built = [cast(BaselineTransformer, models.build(name)) for name in BASELINES]
    for model in built:
        assert len(model.blocks) == 6 and model.token_embed.weight.shape == (30522, 512)
        heads = [layer.num_heads for layer in model.modules() if isinstance(layer, Attention)]
        hidden = [layer.fc1.out_features for layer in model.modules() if isinstance(layer, Mlp)]
        assert heads == [8] * 6 and hidden == [2048] * 6
        assert model.head.weight.shape == (2, 512)
    block = 4 * 512 * 512 + 4 * 512 + 2 * 512 * 2048 + 2048 + 512
    counts = [sum(p.numel() for p in model.parameters()) for model in built]
    outside = 30522 * 512 + 2 * 512 + 2
    plain_count = outside + 6 * (block + 4 * 512) + 2 * 512
    assert counts == [plain_count, outside + 6 * (block + 1), plain_count]


@pytest.mark.parametrize("name", SEQUENCES)
def test_default_sizes_are_those_of_the_lra_transformer(name: str) -> None:
    model: Any = models.build(name)
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert shapes["token_embed.weight"] == (256, 64)
    assert shapes["pos_embed"] == (1, 4096, 64)
    assert shapes["head.0.weight"] == (128, 64) and shapes["head.2.weight"] == (2, 128)
    assert shapes["blocks.1.mlp.fc1.weight"] == (128, 64)
    assert [block.attn.num_heads for block in model.blocks] == [2, 2]
    layer = 2 * 2 * 64 + 4 * 64 * 64 + 4 * 64 + 2 * 64 * 128 + 128 + 64
    outside = 256 * 64 + 4096 * 64 + 2 * 64 + 64 * 128 + 128 + 2 * 128 + 2
    assert sum(p.numel() for p in model.parameters()) == 2 * layer + outside


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
    if names == DEITS:
        given: tuple[Tensor, ...] = (torch.rand(2, 1, 28, 28),)
    else:
        given = plain.batch()
    if "towers" in overrides:
        given = tuple(each[:4].view(2, 2, 6) for each in given)
    assert (dot(*given) - elliptical(*given)).abs().max() > 1e-3


def test_names_are_those_of_public_checkpoints() -> None:
    public = {"cls_token", "pos_embed", "patch_embed.proj.weight", "norm.bias", "head.weight"}
    block = {"norm1.weight", "attn.qkv.bias", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.bias"}
    assert public | {f"blocks.0.{key}" for key in block} <= set(small("deit_tiny").state_dict())


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, [False, True]),
        ({"depth": 4}, [False, False, False, True]),
        ({"depth": 1}, [False]),
        ({"depth": 4, "elliptical_layers": [2, 3]}, [False, True, True, False]),
        ({"elliptical": False}, [False, False]),
    ],
)
def test_last_layer_of_a_sequence_alone_is_elliptical_unless_others_are_named(
    overrides: dict[str, Any], expected: list[bool]
) -> None:
    model = models.build("lra_transformer_elliptical", **TOKENS | overrides)
    found = [layer.elliptical for layer in model.modules() if isinstance(layer, Attention)]
    assert found == expected


def test_heads_are_given_apart_for_training() -> None:
    model, ordinary = small("deit_tiny", distilled=True), small("deit_tiny")
    assert isinstance(model, DeiT) and isinstance(ordinary, DeiT)
    images = torch.rand(2, 1, 28, 28)
    logits, distilled = model.heads(images)
    assert logits.shape == distilled.shape == (2, 10)
    assert (logits - distilled).abs().max() > 0
    assert torch.equal(model(images), (logits + distilled) / 2)
    (only,) = ordinary.heads(images)
    assert torch.equal(ordinary(images), only)


@pytest.mark.parametrize(("img_size", "patch_size"), [(12, 1), (15, 5), (32, 16), (6, 6)])
def test_any_image_and_patch_size(img_size: int, patch_size: int) -> None:
    sizes = DEIT | {"img_size": img_size, "patch_size": patch_size, "in_chans": 2}
    model = models.build("deit_tiny_elliptical", **sizes, distilled=True)
    assert model(torch.rand(2, 2, img_size, img_size)).shape == (2, 10)


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


@pytest.mark.parametrize("name", ["deit_tiny_elliptical", "fan_tiny"])
def test_model_drops_paths_in_training_alone(name: str) -> None:
    torch.manual_seed(0)
    sizes = {"img_size": 8, "patch_size": 4, "embed_dim": 16, "num_heads": 2, "depth": 3}
    model, whole = models.build(name, **sizes, drop_path=0.9), models.build(name, **sizes)
    images = torch.rand(1, 3, 8, 8).expand(32, -1, -1, -1)
    assert len(model.train()(images).round(decimals=4).unique(dim=0)) > 1
    assert (model.eval()(images) - model(images[:1])).abs().max() < 1e-5
    assert whole.state_dict().keys() == model.state_dict().keys()


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
    model = small("transformer_orthogonal")
    assert maps(OrthogonalMap(512))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [layer.weight for layer in model.modules() if isinstance(layer, OrthogonalMap)]
        assert model(*plain.batch()).isfinite().all()
    assert all(torch.equal(a, b) for a, b in zip(found, maps(model), strict=True))
