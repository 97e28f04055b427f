"""The folded form against the trained form, on every path that it has."""

import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

import models
from models.checkpoints import load_weights, save_weights
from models.inference import blockwise
from models.inference.fold import FoldedLongTransJect, singular_range
from models.inference.folded import FoldedExperts
from models.transject import Layer, OrthogonalMap, TransJect
from tests.models.small import small

WIDE = 32
# seq_len, vocab_size: shorter than wide; longer, with and without a table of tokens.
SHAPES = {"short": (24, 11), "long": (70, 11), "long, many tokens": (70, 90)}


def make(name: str, seq_len: int, vocab_size: int, num_experts: int = 3) -> TransJect:
    sizes = {"seq_len": seq_len, "vocab_size": vocab_size, "num_experts": num_experts}
    return small(name, **sizes, embed_dim=WIDE).float()


def given(model: TransJect) -> tuple[Tensor, Tensor]:
    """Tokens and a mask with holes, one sample with a single real token."""
    generator = torch.Generator().manual_seed(1)
    shape = (4, model.config.seq_len)
    tokens = torch.randint(0, model.config.vocab_size, shape, generator=generator)
    mask = torch.rand(shape, generator=generator) > 0.3
    mask[1] = False
    mask[1, 5] = True
    return tokens, mask


@pytest.fixture(params=[16, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 100))])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of one token, blocks that do not divide the sequence, one block for all."""
    monkeypatch.setattr(blockwise, "BLOCK", request.param)


every_shape = pytest.mark.parametrize("shape", SHAPES)


@pytest.mark.parametrize(
    ("name", "num_experts", "grad"),
    [("transject", 3, False), ("transject", 1, True), ("transject_random", 3, True)],
)
@every_shape
@pytest.mark.usefixtures("block")
def test_logits_are_those_of_the_trained_form(
    shape: str, name: str, num_experts: int, grad: bool
) -> None:
    model = make(name, *SHAPES[shape], num_experts)
    tokens, mask = given(model)
    for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
        model = model.to(dtype)
        folded = models.fold(model)
        with torch.set_grad_enabled(grad):
            for real in (None, mask):
                difference = folded(tokens, real) - model(tokens, real)
                assert difference.abs().max() <= tolerance
            few = tokens[:, :5]  # fewer than the model is wide
            assert (folded(few) - model(few)).abs().max() <= tolerance


def test_folded_images_give_the_same_gradients_to_their_input() -> None:
    model = small("transject_image", img_size=8, embed_dim=32).float()
    images = torch.rand(2, 3, 8, 8, requires_grad=True)
    exact, found = (
        torch.autograd.grad(each(images).square().sum(), images)[0]
        for each in (model, models.fold(model))
    )
    assert exact.abs().max() > 0 and (exact - found).abs().max() <= 1e-5


@every_shape
def test_nothing_is_parametrized_and_the_original_is_left_as_it_is(shape: str) -> None:
    model = make("transject", *SHAPES[shape]).train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    folded = models.fold(model)
    assert isinstance(folded, FoldedLongTransJect) == (shape != "short")
    assert not any(parametrize.is_parametrized(each) for each in folded.modules())
    assert not any(each.requires_grad for each in folded.parameters()) and not folded.training
    assert model.training and all(each.requires_grad for each in model.parameters())
    assert any(parametrize.is_parametrized(each) for each in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@every_shape
def test_a_folded_model_can_be_folded_saved_loaded_pickled_and_asked_for_nothing(
    shape: str, tmp_path: Path
) -> None:
    model = make("transject", *SHAPES[shape])
    folded, (tokens, mask) = models.fold(model), given(model)
    for layer in model.modules():
        if isinstance(layer, Layer):
            nn.init.constant_(layer.r, -0.3)
    other = models.fold(model)
    size = len(pickle.dumps(folded))
    with torch.no_grad():
        expected = folded(tokens, mask)
        for again in (models.fold(folded), pickle.loads(pickle.dumps(folded))):
            assert torch.equal(again(tokens, mask), expected)
        assert folded(torch.zeros(0, 6, dtype=torch.int64)).shape == (0, 3)
    assert len(pickle.dumps(folded)) == size  # memory of earlier calls stays behind
    assert (other(tokens, mask) - expected).abs().max() > 1e-3
    save_weights(folded, tmp_path / "w.safetensors")
    load_weights(other, tmp_path / "w.safetensors")
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            assert torch.equal(folded(tokens, mask), other(tokens, mask))


@pytest.mark.parametrize("name", ["transject", "transject_random"])
def test_folded_products_have_a_spectral_norm_of_at_most_one(name: str) -> None:
    model = make(name, *SHAPES["long"])
    x = model.embed(given(model)[0])
    folded = models.fold(model)
    for eigenvalues in model.encoder.eigenvalues(x).detach():
        for layer in folded.modules():
            if isinstance(layer, FoldedExperts):
                norms = torch.linalg.matrix_norm(layer.products(eigenvalues), 2)
                assert norms.max() <= 1 + 1e-5 and norms.min() > 0.99


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 0.01), (torch.float64, 1e-12)]
)
def test_matrices_report_their_singular_values(dtype: torch.dtype, tolerance: float) -> None:
    model = make("transject", *SHAPES["long"])
    low, high = singular_range(models.fold(model.to(torch.float64), dtype=dtype))
    assert 1 - tolerance < low <= high < 1 + tolerance
    assert (high - low > 1e-4) == (dtype == torch.bfloat16)
    with pytest.raises(ValueError, match="model must be a folded TransJect"):
        singular_range(model)


@pytest.mark.parametrize(("name", "count"), [("transject", 5), ("transformer_orthogonal", 4)])
def test_matrices_are_orthogonal_however_large_the_weights_have_grown(
    name: str, count: int
) -> None:
    torch.manual_seed(0)
    more = {"num_experts": 1} if name == "transject" else {"num_heads": 2}
    model = models.build(name, embed_dim=64, vocab_size=9, seq_len=9, depth=1, **more)
    with torch.no_grad():
        for key, each in model.named_parameters():
            if key.endswith("original"):
                each.mul_(20)
    assert sum(isinstance(each, OrthogonalMap) for each in model.modules()) == count
    folded = models.fold(model)
    if name == "transject":
        low, high = singular_range(folded)
        assert 1 - 1e-6 < low <= high < 1 + 1e-6
    for each in folded.modules():
        if isinstance(each, OrthogonalMap):
            error = each.weight.double().T @ each.weight.double() - torch.eye(64)
            assert torch.linalg.matrix_norm(error, 2) < 1e-5


def test_grad_modes_and_precisions_may_alternate() -> None:
    model = make("transject", *SHAPES["long"])
    folded = models.fold(model)
    tokens, mask = given(model)
    with torch.inference_mode():
        expected = folded(tokens, mask).clone()
    with torch.no_grad():
        assert torch.equal(folded(tokens, mask), expected)
    assert (folded(tokens, mask) - expected).abs().max() <= 1e-5
    with torch.no_grad():
        assert (folded.double()(tokens, mask) - model.double()(tokens, mask)).abs().max() <= 1e-5


def test_threads_and_lengths_share_a_folded_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "BLOCK", 16)
    model = make("transject", *SHAPES["long"])
    folded = models.fold(model)
    tokens, _ = given(model)
    lengths = [3, 70, 1, 40, 70, 12, 55, 8] * 4

    def run(length: int) -> Tensor:
        with torch.no_grad():
            return folded(tokens[:, :length])

    alone = [run(length) for length in lengths]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(run, lengths))
    for first, second in zip(alone, together, strict=True):
        assert torch.equal(first, second)


@every_shape
@pytest.mark.usefixtures("block")
def test_autocast_rounds_nothing_that_is_folded_but_matrices_may_be(shape: str) -> None:
    model = make("transject", *SHAPES[shape])
    tokens, mask = given(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        folded = models.fold(model)
        assert folded(tokens, mask).isfinite().all()
    with torch.no_grad():
        exact = models.fold(model)(tokens, mask)
        assert torch.equal(folded(tokens, mask), exact)
        rounded = models.fold(model, dtype=torch.bfloat16)(tokens, mask)
    assert 0 < (rounded - exact).abs().max() < 0.02


@pytest.mark.parametrize("shape", ["long", "long, many tokens"])
def test_device_is_given_whole_batches_and_never_asked_for_a_value(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FoldedLongTransJect, "check", lambda *_: None)  # it looks at the ids
    model = make("transject", *SHAPES[shape])
    folded = models.fold(model).to("meta")  # where no tensor has values
    tokens, mask = (each.to("meta") for each in given(model))
    with torch.inference_mode():
        assert folded(tokens, mask).shape == (4, model.config.num_classes)
