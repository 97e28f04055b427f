from typing import Any, cast

import onnxruntime
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import models
from export.onnx import to_onnx
from models.inference.fold import fold
from models.layers.towers import TransJectTowers, TwoTower

SMALL = {"vocab_size": 11, "seq_len": 9, "embed_dim": 16, "depth": 2, "num_classes": 3}
ENCODERS = ["lra_transformer", "lra_transformer_elliptical", "transject", "transformer"]
MORE: dict[str, dict[str, Any]] = {"transject": {"num_experts": 2}}


def small(name: str, **overrides: Any) -> TwoTower:
    """A small pair of towers in float64, with weights large enough for every part to matter."""
    torch.manual_seed(0)
    fields = SMALL | MORE.get(name, {"num_heads": 2}) | overrides
    towers = TransJectTowers if name == "transject" else TwoTower
    model = towers(models.build(name, **fields), hidden_dim=8).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return model


def pairs() -> tuple[Tensor, Tensor]:
    """Three pairs, the two sequences of one of different lengths."""
    tokens = torch.randint(0, 11, (3, 2, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.ones(3, 2, 6, dtype=torch.bool)
    mask[0, 0, 2:] = mask[1, 1, 5:] = mask[2, :, 4:] = False
    return tokens, mask


def assert_same(logits: Tensor, expected: Tensor) -> None:
    assert (logits - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("name", ENCODERS)
def test_both_towers_share_the_encoder_and_the_head_sees_the_pair(name: str) -> None:
    model, (tokens, mask) = small(name), pairs()
    w = model.head.state_dict()
    with torch.no_grad():
        for i in range(3):
            a, b = (model.encoder.features(tokens[i : i + 1, t, mask[i, t]])[0] for t in range(2))
            pair = torch.cat([a, b, a * b, a - b])
            hidden = (w["0.weight"] @ pair + w["0.bias"]).clamp(min=0)
            expected = w["2.weight"] @ hidden + w["2.bias"]
            assert_same(model(tokens, mask)[i], expected)


@pytest.mark.parametrize("name", ENCODERS)
def test_neither_other_pairs_nor_padding_change_a_prediction(name: str) -> None:
    model, (tokens, mask) = small(name), pairs()
    with torch.no_grad():
        expected = torch.cat([model(tokens[i : i + 1], mask[i : i + 1]) for i in range(3)])
        for more, fill in ((0, 0), (1, 10), (3, 5)):
            padded = F.pad(tokens.masked_fill(~mask, fill), (0, more), value=fill)
            assert_same(model(padded, F.pad(mask, (0, more))), expected)
        assert_same(model(tokens), model(tokens, torch.ones_like(mask)))


@pytest.mark.parametrize("name", ENCODERS)
def test_every_parameter_receives_a_gradient(name: str) -> None:
    model, (tokens, mask) = small(name, seq_len=6).train(), pairs()
    loss = F.cross_entropy(model(tokens, mask), torch.arange(3))
    if name == "transject":
        logits, reconstruction = cast(TransJectTowers, model).logits_and_reconstruction(
            tokens, mask
        )
        assert_same(logits, model(tokens, mask))
        rows, rows_mask = tokens.view(6, 6), mask.view(6, 6)  # the sequences of both towers
        assert_same(reconstruction, model.encoder.logits_and_reconstruction(rows, rows_mask)[1])
        loss = loss + reconstruction
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("seq_len", [9, 40])  # shorter and longer than the model is wide
def test_folded_transject_serves_as_the_encoder(seq_len: int) -> None:
    model, (tokens, mask) = small("transject", seq_len=seq_len), pairs()
    with torch.no_grad():
        assert_same(fold(model)(tokens, mask), model(tokens, mask))


def test_towers_of_the_catalog_have_the_head_of_lra() -> None:
    model = models.build("lra_transformer_elliptical", towers=2)
    assert isinstance(model, TwoTower) and model.config.towers == 2
    shapes = {key: tuple(value.shape) for key, value in model.state_dict().items()}
    assert shapes["head.0.weight"] == (128, 256) and shapes["head.2.weight"] == (2, 128)
    assert not [key for key in shapes if key.startswith("encoder.head")]
    assert not hasattr(model, "logits_and_reconstruction")


# Deprecated, but what `export` writes for users of TorchScript.
@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize(
    ("pooling", "masked"),
    [
        ("mean", True),
        pytest.param("max", True, marks=pytest.mark.slow),
        pytest.param("cls", False, marks=pytest.mark.slow),
    ],
)
def test_exported_and_traced_towers_take_any_batch_and_length(pooling: str, masked: bool) -> None:
    model = small("lra_transformer_elliptical", pooling=pooling).float()
    tokens, mask = pairs()
    inputs = (tokens, mask) if masked else (tokens,)
    larger, one = ([x.repeat(2, 1, 1)[:n, :, :5] for x in inputs] for n in (4, 1))
    sizes = {0: torch.export.Dim("batch"), 2: torch.export.Dim("seq_len", min=2, max=9)}
    exported = torch.export.export(model, inputs, dynamic_shapes=(sizes,) * len(inputs))
    graphs: list[Any] = [exported.module(), torch.jit.trace(model, inputs)]
    with torch.no_grad():
        for graph in graphs:
            for arguments in (inputs, larger, one):
                assert (graph(*arguments) - model(*arguments)).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["transject", "transject_random"])
def test_transject_is_built_with_two_towers_by_name(name: str) -> None:
    fields = SMALL | MORE["transject"] | {"towers": 2, "num_classes": 3}
    model, (tokens, mask) = models.build(name, **fields), pairs()
    assert isinstance(model, TransJectTowers) and model(tokens, mask).shape == (3, 3)
    logits, loss = cast(TransJectTowers, model).logits_and_reconstruction(tokens, mask)
    assert torch.equal(logits, model(tokens, mask)) and loss.shape == ()
    with pytest.raises(ValueError, match="towers must be 1 or 2, got 3"):
        models.build(name, towers=3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ENCODERS)
def test_towers_answer_alike_as_a_graph_of_onnx(name: str) -> None:
    model = small(name).float()
    tokens, mask = pairs()
    session = onnxruntime.InferenceSession(to_onnx(model, (tokens, mask), {}))
    for count, length in ((3, 6), (1, 5), (2, 9)):
        given = tokens[:count], mask[:count]
        given = [F.pad(each, (0, length - 6)) for each in given]
        feed = {"tokens": given[0].numpy(), "mask": given[1].numpy()}
        found = torch.from_numpy(session.run(["logits"], feed)[0])
        expected = model(*given).detach()
        assert ((found - expected).abs() <= 1e-5 * expected.abs().clamp_min(1.0)).all()
        assert torch.equal(found.argmax(1), expected.argmax(1))


@pytest.mark.slow
def test_towers_compile_and_run_under_autocast() -> None:
    model, inputs = small("lra_transformer_elliptical").float(), pairs()
    with torch.no_grad():
        compiled = torch.compile(model, backend="aot_eager")(*inputs)
        assert (compiled - model(*inputs)).abs().max() <= 1e-5
        with torch.autocast("cpu", dtype=torch.bfloat16):
            rounded = model(*inputs)
    scale = max(1.0, float(compiled.abs().max()))
    assert rounded.isfinite().all() and (rounded - compiled).abs().max() <= 0.1 * scale


def test_inputs_against_the_rules_are_refused() -> None:
    model, (tokens, mask) = small("lra_transformer"), pairs()
    for arguments, message in (
        ((tokens[:, 0], None), r"tokens must be \(B, 2, 1..9\), got \(3, 6\)"),
        ((tokens + 11, None), "tokens must lie in 0..10, got"),
        ((tokens, mask[:, 0]), r"mask must be bool of shape \(3, 2, 6\), got torch.bool \(3, 6\)"),
    ):
        with pytest.raises(ValueError, match=message):
            model(*arguments)
