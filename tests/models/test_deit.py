import pytest
import torch
from torch.nn import functional as F

import models

SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "num_classes": 10, "embed_dim": 32}
SMALL |= {"num_heads": 2, "depth": 3, "mlp_ratio": 2.0}
TWINS = ["deit_tiny", "deit_tiny_elliptical"]


@pytest.mark.parametrize("suffix", ["", "_elliptical"])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [("deit_tiny", 5_717_416), ("deit_small", 22_050_664), ("deit_base", 86_567_656)],
)
def test_parameter_count_is_the_published_one(name: str, suffix: str, parameters: int) -> None:
    with torch.device("meta"):
        model = models.build(name + suffix)
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_twins_share_names_and_shapes_and_those_of_public_checkpoints() -> None:
    dot, elliptical = (models.build(name, **SMALL) for name in TWINS)
    elliptical.load_state_dict(dot.state_dict())
    dot.load_state_dict(elliptical.state_dict())
    public = {"cls_token", "pos_embed", "patch_embed.proj.weight", "norm.bias", "head.weight"}
    block = {"norm1.weight", "attn.qkv.bias", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.bias"}
    assert public | {f"blocks.0.{key}" for key in block} <= set(dot.state_dict())
    assert not {"mean", "std"} & set(dot.state_dict())


def test_dot_product_deit_is_the_published_forward() -> None:
    torch.manual_seed(0)
    model = models.build("deit_tiny", **SMALL).double().eval()
    w = dict(model.named_parameters())
    images = torch.rand(2, 1, 28, 28, dtype=torch.float64)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (32,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-6)

    patches = F.unfold((images - 0.5) / 0.5, 7, stride=7).transpose(1, 2)
    kernel = w["patch_embed.proj.weight"].flatten(1)
    x = patches @ kernel.T + w["patch_embed.proj.bias"]
    x = torch.cat([w["cls_token"].expand(2, 1, 32), x], 1) + w["pos_embed"]
    for i in range(3):
        q, k, v = (
            part.view(2, 17, 2, 16).transpose(1, 2)
            for part in linear(norm(x, f"blocks.{i}.norm1"), f"blocks.{i}.attn.qkv").chunk(3, -1)
        )
        attended = (q @ k.transpose(-1, -2) / 4).softmax(-1) @ v
        x = x + linear(attended.transpose(1, 2).reshape(2, 17, 32), f"blocks.{i}.attn.proj")
        hidden = linear(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.fc1")
        hidden = 0.5 * hidden * (1 + torch.erf(hidden / 2**0.5))
        x = x + linear(hidden, f"blocks.{i}.mlp.fc2")
    expected = linear(norm(x, "norm")[:, 0], "head")
    assert (model(images) - expected).abs().max() < 1e-10


@pytest.mark.parametrize("name", TWINS)
def test_prediction_does_not_depend_on_the_batch(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, **SMALL).eval()
    images = torch.rand(5, 1, 28, 28)
    with torch.inference_mode():
        together, alone = model(images), torch.cat([model(image[None]) for image in images])
    assert (together - alone).abs().max() <= 1e-5 * max(1.0, float(alone.abs().max()))
    assert torch.equal(together.argmax(1), alone.argmax(1))


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("fill", [0.0, 0.5, 1.0, 1e6])
def test_logits_are_finite_for_constant_and_huge_inputs(name: str, fill: float) -> None:
    torch.manual_seed(0)
    model = models.build(name, **SMALL).eval()
    assert model(torch.full((2, 1, 28, 28), fill)).isfinite().all()


@pytest.mark.parametrize("name", TWINS)
def test_every_parameter_receives_a_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = models.build(name, **SMALL)
    # At std 0.02 the gradient of q and k is tiny: larger weights make the test meaningful.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    F.cross_entropy(model(torch.rand(4, 1, 28, 28)), torch.arange(4)).backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key


def test_elliptical_twin_computes_something_else() -> None:
    dot, elliptical = (models.build(name, **SMALL).eval() for name in TWINS)
    elliptical.load_state_dict(dot.state_dict())
    images = torch.rand(2, 1, 28, 28)
    assert (dot(images) - elliptical(images)).abs().max() > 0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"embed_dim": 10, "num_heads": 4}, "embed_dim must be a multiple of num_heads, got 10"),
        ({"img_size": 30, "patch_size": 4}, "img_size must be a multiple of patch_size, got 30"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"scaling": "most"}, "scaling must be one of"),
        ({"delta": 0.0}, "delta must be positive, got 0.0"),
        ({"in_chans": 1, "mean": (0.1, 0.2)}, "mean must have one value per channel"),
        ({"std": (0.0, 1.0, 1.0)}, "std must be positive"),
        ({"num_clases": 10}, "did you mean 'num_classes'"),
    ],
)
def test_config_against_the_rules_is_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        models.build("deit_tiny", **overrides)


def test_unknown_model_names_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'deit_tiny_elliptical'"):
        models.build("deit_tiny_eliptical")
