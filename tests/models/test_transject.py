"""TransJect against plain implementations, and its guarantees on random and on trained weights."""

import copy
import functools
import math
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import models
from models.analysis import inversion
from models.analysis.inversion import Encoding, encode, invert, recover_tokens
from models.layers.contributions import BoundedHead, contributions
from models.transject import MAX_STEP, FeedForward, Layer, TransJect
from models.transject_image import TransJectImage
from tests.models import plain_transformer as plain
from tests.models.small import small

SMALL = {"vocab_size": 11, "seq_len": 24, "embed_dim": 16, "depth": 2, "num_experts": 3}
NAMES = ["transject", "transject_random"]


def layers(model: TransJect | TransJectImage) -> list[Layer]:
    return cast(list[Layer], list(model.encoder.layers))


def set_steps(model: TransJect, r: float) -> None:
    for layer in layers(model):
        nn.init.constant_(layer.r, r)


def example(name: str = "transject", **overrides: object) -> TransJect:
    return small(name, **{"seq_len": 24} | overrides)


def tokens_and_mask(B: int = 3, N: int = 7, vocab_size: int = 11) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(N)[None] < torch.tensor([[N], [4], [1]][:B])
    return torch.randint(0, vocab_size, (B, N), generator=generator), mask


def cayley(map_: Any) -> Tensor:
    return plain.cayley(map_.parametrizations.weight.original.detach())


@torch.no_grad()
def plain_logits(model: TransJect | TransJectImage, embedded: Tensor) -> Tensor:
    """SPEC's formulas for one sample, from what is embedded of each token or patch, (N, d / 2)."""
    config, encoder = model.config, model.encoder
    positions = plain.sinusoidal(torch.arange(len(embedded)), config.embed_dim // 2)
    x = torch.cat((embedded, positions), dim=1)
    if encoder.u0 is None:
        assert encoder.diagonal is not None
        sigma = encoder.diagonal / encoder.diagonal.abs().max()
    else:
        u0 = cayley(encoder.u0)
        sigma = torch.diag(u0.T @ x.T @ x @ u0)
        sigma = sigma / sigma.max()
    for layer in layers(model):
        step = math.tanh(layer.r.item()) / config.depth
        proposals = []
        for u, v in zip(layer.experts.u, layer.experts.v, strict=True):
            matrix = cayley(u) @ torch.diag(sigma) @ cayley(v)
            proposals.append(x + step * F.elu(x @ matrix))
        weights = torch.ones(1, dtype=torch.float64)
        if layer.experts.gate is not None:
            w = layer.experts.gate.weight[0]
            weights = torch.stack([w @ each.max(0).values for each in proposals]).softmax(0)
        x = torch.stack([w * each for w, each in zip(weights, proposals, strict=True)]).sum(0)
        w1, w2 = (cayley(each) for each in layer.ffn.w)
        x = x + step * F.elu(F.elu(x @ w1 + layer.ffn.b1) @ w2 + layer.ffn.b2)
    if config.token_bound is not None:
        given = (x @ model.head.weight.T).clamp(-config.token_bound, config.token_bound)
        return given.mean(0) + model.head.bias
    return plain.linear(plain.pool(x, config.pooling), model.state_dict(), "head")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_experts", [1, 3])
@pytest.mark.parametrize(("pooling", "N"), [("mean", 7), ("max", 7), ("max", 20)])
def test_forward_is_the_formula_on_the_real_tokens(
    name: str, num_experts: int, pooling: str, N: int
) -> None:
    model = example(name, num_experts=num_experts, pooling=pooling, seq_len=N)
    tokens, mask = tokens_and_mask(N=N)
    samples = zip(model.embedding(tokens), mask, strict=True)
    expected = torch.stack([plain_logits(model, each[real]) for each, real in samples])
    for training in (False, True):  # which takes another way through long sequences
        assert (model.train(training)(tokens, mask) - expected).abs().max() <= 1e-10


@pytest.mark.parametrize("random_eigenvalues", [False, True])
@pytest.mark.parametrize(("pooling", "bound"), [("mean", None), ("max", None), ("mean", 0.2)])
def test_forward_of_images_is_the_formula(
    random_eigenvalues: bool, pooling: str, bound: float | None
) -> None:
    sizes: dict[str, Any] = {"in_chans": 2, "mean": (0.3, 0.6), "std": (0.2, 0.7)}
    sizes |= {"random_eigenvalues": random_eigenvalues, "pooling": pooling, "token_bound": bound}
    model = small("transject_image", **sizes)
    images = torch.rand(3, 2, 12, 12, dtype=torch.float64)
    patches = [plain.patches(image, model.state_dict(), model.config) for image in images]
    expected = torch.stack([plain_logits(model, each) for each in patches])
    assert (model(images) - expected).abs().max() <= 1e-10
    x = model.embed(images)
    assert (invert(model.encoder, encode(model.encoder, x)) - x).abs().max() <= 1e-10


def test_a_bounded_contribution_learns_to_turn_back_alone() -> None:
    head = BoundedHead(1, 1, 2.0)
    nn.init.ones_(head.weight)
    x = torch.tensor([[-3.0], [-3.0], [1.0], [3.0], [3.0]], requires_grad=True)
    given = contributions(head, x)
    given.backward(torch.tensor([[1.0], [-1.0], [1.0], [1.0], [-1.0]]))
    assert given.flatten().tolist() == [-2, -2, 1, 2, 2]
    assert x.grad is not None and x.grad.flatten().tolist() == [0, -1, 1, 1, 0]
    assert torch.equal(contributions(head.eval(), x), given)


def test_random_eigenvalues_belong_to_the_model_alone() -> None:
    model = example("transject_random")
    with torch.no_grad():
        assert model.encoder.diagonal is not None
        model.encoder.diagonal[3] = -2.0
    eigenvalues = model.encoder.eigenvalues(model.embed(tokens_and_mask()[0]))
    assert torch.equal(eigenvalues, eigenvalues[:1].expand(3, -1))
    assert eigenvalues.abs().max() == 1 and eigenvalues[0, 3] == -1
    assert model.logits_and_reconstruction(tokens_and_mask()[0])[1] == 0


def test_reconstruction_loss_is_the_norm_and_trains_u0_alone() -> None:
    model = example()
    tokens, mask = tokens_and_mask()
    logits, loss = model.logits_and_reconstruction(tokens, mask)
    assert torch.equal(logits, model(tokens, mask))
    assert model.encoder.u0 is not None
    u0, expected = cayley(model.encoder.u0), 0.0
    x = model.embed(tokens, mask).detach()
    for sample, real in zip(x, mask, strict=True):
        gram = sample[real].T @ sample[real] / int(real.sum())
        rebuilt = u0 @ torch.diag(torch.diag(u0.T @ gram @ u0)) @ u0.T
        expected += float((gram - rebuilt).square().sum()) / 16**2 / 3
    assert abs(loss.item() - expected) <= 1e-12
    loss.backward()
    touched = [key for key, each in model.named_parameters() if each.grad is not None]
    assert touched == ["encoder.u0.parametrizations.weight.original"]


def test_layers_begin_as_identities_and_steps_stay_below_one() -> None:
    torch.manual_seed(0)
    model = models.build("transject", **SMALL)
    tokens, _ = tokens_and_mask()
    assert isinstance(model, TransJect)
    x = model.embed(tokens)
    assert torch.allclose(model.encoder(x), x, atol=1e-6)
    layer = Layer(1, 8, depth=3)
    nn.init.constant_(layer.r, 50.0)
    assert float(layer.step.detach()) == pytest.approx(MAX_STEP / 3, abs=1e-7)


# The guarantees, on random and on trained weights.


@functools.cache
def train(name: str) -> TransJect:
    """Train until it tells which of two tokens occurs more often; its steps left zero."""
    torch.manual_seed(0)
    model = models.build(name, **SMALL)
    assert isinstance(model, TransJect)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, betas=(0.9, 0.98), eps=1e-9)
    correct = 0.0
    for step in range(150):
        tokens = torch.randint(0, 11, (32, 15), generator=generator)
        labels = ((tokens == 3).sum(1) > (tokens == 5).sum(1)).long()
        logits, loss = model.logits_and_reconstruction(tokens)
        optimizer.zero_grad()
        (F.cross_entropy(logits, labels) + loss).backward()
        optimizer.step()
        if step >= 140:
            correct += float((logits.argmax(1) == labels).float().mean()) / 10
    assert correct > 0.85
    assert all(abs(layer.r.item()) > 1e-2 for layer in layers(model))
    return model.eval()


@pytest.fixture(
    params=[
        "random",
        "random eigenvalues",
        "large steps",
        "trained transject",
        pytest.param("trained transject_random", marks=pytest.mark.slow),
    ]
)
def model(request: pytest.FixtureRequest) -> TransJect:
    kind, _, name = request.param.partition(" ")
    if kind == "trained":
        return copy.deepcopy(train(name)).double()
    chosen = example("transject_random" if request.param == "random eigenvalues" else "transject")
    if request.param == "large steps":
        set_steps(chosen, 5.0)
    return chosen


def test_distances_between_tokens_of_a_sequence_stay_within_both_bounds(model: TransJect) -> None:
    tokens, mask = tokens_and_mask(N=15)
    x = model.embed(tokens, mask)
    y = encode(model.encoder, x, mask).states
    low = high = 1.0
    for layer in layers(model):
        step = abs(layer.step.item())
        low, high = low * (1 - step) ** 2, high * (1 + step) ** 2
    assert high < math.e**2
    for before, after in zip(x, y, strict=True):
        ratio = F.pdist(after) / F.pdist(before)
        assert low * (1 - 1e-9) <= ratio.min() and ratio.max() <= high * (1 + 1e-9)
        assert ratio.max() - ratio.min() > 1e-4  # the layers do something


def test_every_sublayer_is_lipschitz_with_a_constant_of_at_most_one(model: TransJect) -> None:
    tokens, _ = tokens_and_mask(B=1, N=5)
    x = model.embed(tokens)
    eigenvalues = model.encoder.eigenvalues(x)
    for layer in layers(model):

        def proposals(token: Tensor, layer: Layer = layer) -> Tensor:
            outputs = layer.experts.outputs(token[None, None], eigenvalues, layer.step)
            return (outputs[0, :, 0] - token) / layer.step

        for token in x[0]:
            jacobians = torch.autograd.functional.jacobian(proposals, token)
            assert torch.linalg.matrix_norm(jacobians, 2).max() <= 1 + 1e-9


def test_tokens_are_recovered_exactly(model: TransJect) -> None:
    tokens, mask = tokens_and_mask(N=15)
    x = model.embed(tokens, mask)
    encoding = encode(model.encoder, x, mask)
    assert (encoding.states - x).abs().max() > 1e-3
    found = invert(model.encoder, encoding)
    assert (found - x).abs().max() <= 1e-10
    assert torch.equal(recover_tokens(model, encoding), tokens)


def test_fixed_map_of_one_expert_bounds_distances_between_sequences_too() -> None:
    model = example("transject_random", num_experts=1)
    generator = torch.Generator().manual_seed(2)
    first, second = (torch.randint(0, 11, (8, 15), generator=generator) for _ in range(2))
    x, y = model.embed(first), model.embed(second)
    ratio = (model.encoder(x) - model.encoder(y)).norm(dim=-1) / (x - y).norm(dim=-1)
    high = math.prod((1 + abs(each.step.item())) ** 2 for each in layers(model))
    assert ratio[first != second].max() <= high


# The inverse, at its limits.


def encoded(model: TransJect) -> Encoding:
    with torch.no_grad():
        return encode(model.encoder, model.embed(tokens_and_mask()[0]))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Called with every step of the iteration."""
    steps = Mock(side_effect=FeedForward.forward)
    monkeypatch.setattr(FeedForward, "forward", lambda *given: steps(*given))
    return steps


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("field", ["states", "eigenvalues"])
def test_an_encoding_that_is_not_finite_is_refused_at_once(
    steps: Mock, field: str, value: float
) -> None:
    model = example()
    encoding = encoded(model)
    getattr(encoding, field).view(-1)[3] = value
    with pytest.raises(ValueError, match="encoding must be finite"):
        invert(model.encoder, encoding)
    assert steps.call_count < 200


def test_a_tolerance_out_of_reach_is_refused_soon(steps: Mock) -> None:
    model = example().float()
    for tolerance in (-1.0, math.nan):
        with pytest.raises(ValueError, match="tolerance must be within reach of torch.float32"):
            invert(model.encoder, encoded(model), tolerance=tolerance)
    assert steps.call_count < 200


@pytest.mark.parametrize("r", [0.0, 3.0, 20.0])
def test_the_slowest_contraction_is_followed_to_its_end(r: float) -> None:
    model = example(depth=1)
    set_steps(model, r)
    x = model.embed(tokens_and_mask()[0])
    assert (invert(model.encoder, encoded(model)) - x).abs().max() < 1e-6


@pytest.mark.parametrize("held", [1, 10, 11, 500, 10**6])
def test_tokens_are_recovered_whatever_fits_into_memory(
    monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(inversion, "_MAX_DISTANCES", held)
    model = example()
    assert torch.equal(recover_tokens(model, encoded(model)), tokens_and_mask()[0])


def test_first_embeddings_have_the_spread_that_is_asked_for() -> None:
    sizes: dict[str, Any] = {"vocab_size": 500, "seq_len": 4, "embed_dim": 64, "depth": 1}
    tables = []
    for std in (1.0, 0.1):
        torch.manual_seed(0)
        tables.append(cast(TransJect, models.build("transject", **sizes, embed_std=std)).embedding)
    wide, narrow = (table.weight for table in tables)
    assert torch.equal(narrow, 0.1 * wide) and 0.98 < wide.std() < 1.02
    with pytest.raises(ValueError, match="embed_std must be positive, got 0"):
        models.config("transject", embed_std=0)
