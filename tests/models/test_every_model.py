"""What holds for every name of the catalog: invariances, gradients, precisions, graphs."""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Collection
from typing import Any, cast

import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import models
from export.onnx import to_onnx
from export.torch_files import to_torchscript
from models.attention.base import metric_gradient
from models.language import LanguageModel
from models.layers.images import ImageModel
from models.layers.tokens import TokenModel
from runtimes.torchscript import load_torchscript
from tests.models.small import small

SMALL: dict[str, object] = {"img_size": 16, "patch_size": 4, "in_chans": 1, "num_classes": 5}
SMALL |= {"vocab_size": 30, "seq_len": 40, "depth": 2, "embed_dim": 32, "num_heads": 2}
SMALL |= {"pooled_layers": 1, "scaled_layers": 1, "mlp_ratio": 2.0}
SHARES = ("dropout", "drop_path")
# Names that differ from another one in their size alone, see `test_other_sizes_are_the_same_model`.
SIZES = {
    f"{family}_{size}{suffix}": f"{family}_tiny{suffix}"
    for family, size in (("deit", "small"), ("deit", "base"), ("fan", "small"), ("rvt", "small"))
    for suffix in ("", "_elliptical")
} | {"lm_medium": "lm_small", "lm_medium_elliptical": "lm_small_elliptical"}
# Both forms of a folded TransJect: 40 tokens are more than 32 wide, and fewer than 64 wide.
OPTIONS: dict[str, tuple[str, dict[str, object]]] = {
    "transject, short": ("transject", {"embed_dim": 64, "num_experts": 2}),
    "transject, max": ("transject", {"pooling": "max"}),
    "transject, one expert": ("transject_random", {"embed_dim": 64, "num_experts": 1}),
    "transject, many tokens": ("transject", {"vocab_size": 90}),
    "transject, bounded": ("transject_random", {"token_bound": 0.5}),
    "transject, bag": ("transject_random", {"num_experts": 1, "positions": False}),
    "transject, towers": ("transject", {"towers": 2}),
    "deit, consistent": ("deit_tiny_elliptical", {"estimator": "consistent"}),
    "deit, random": ("deit_tiny_elliptical", {"estimator": "random", "metric_seed": 0}),
    "deit, mean": ("deit_tiny_elliptical", {"scaling": "mean", "distilled": True}),
    "rvt, elliptical": (
        "rvt_tiny_elliptical",
        {"scaled_layers": 2, "pooled_layers": 0, "embed_dim": 16},
    ),
    "lra, consistent": (
        "lra_transformer_elliptical",
        {"estimator": "consistent", "pooling": "cls"},
    ),
    "lra, none": ("lra_transformer_elliptical", {"scaling": "none", "pooling": "max"}),
    "lra, bigbird": ("lra_transformer", {"attention": "bigbird", "block": 1}),
    "lra, linformer": ("lra_transformer", {"attention": "linformer", "rank": 5}),
    "lra, longformer": ("lra_transformer", {"attention": "longformer", "window": 4}),
    "lra, nystromformer": ("lra_transformer", {"attention": "nystromformer", "landmarks": 4}),
    "lra, performer": ("lra_transformer", {"attention": "performer", "features": 24}),
    "lra, skyformer": ("lra_transformer", {"attention": "skyformer", "landmarks": 6}),
    "lra, synthesizer": ("lra_transformer", {"attention": "synthesizer"}),
    "lra, towers": ("lra_transformer_elliptical", {"towers": 2}),
    "lm, switch": ("lm_small_elliptical", {"experts": "switch", "num_experts": 3}),
    "lm, classifier": ("lm_classifier_elliptical", {"experts": "switch", "capacity_factor": 1.0}),
    "lm, glam": ("lm_small", {"experts": "glam", "capacity_factor": 1.0}),
    "baseline, towers": ("transformer_orthogonal", {"towers": 2}),
}


def at_test_size(name: str, options: dict[str, object]) -> tuple[str, dict[str, object]]:
    own = {field.name for field in dataclasses.fields(models.config(name))}
    return name, {key: value for key, value in SMALL.items() if key in own} | options


VARIANTS = {name: at_test_size(name, {}) for name in models.names() if name not in SIZES}
VARIANTS |= {variant: at_test_size(*chosen) for variant, chosen in OPTIONS.items()}
every_model = pytest.mark.parametrize("variant", VARIANTS)


class LastToken(nn.Module):
    """A language model's logits (B, V) after the last real token of each sample."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.config = model, model.config

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        logits = self.model(tokens, mask)
        if mask is None:
            return logits[:, -1]
        numbers = torch.arange(tokens.shape[1], device=tokens.device)
        last = (numbers * mask).amax(1)
        return logits.gather(1, last[:, None, None].expand(-1, 1, logits.shape[2]))[:, 0]


def build(variant: str) -> nn.Module:
    """A model away from its initial point, also in the statistics of its norms."""
    name, overrides = VARIANTS[variant]
    model = small(name, **overrides).float()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and module.running_mean is not None:
            module.running_mean.normal_(std=0.1)
    return LastToken(model) if isinstance(model, LanguageModel) else model


def is_token_model(variant: str) -> bool:
    return "vocab_size" in VARIANTS[variant][1]


def inputs(variant: str, B: int = 4, N: int = 12) -> tuple[Tensor, ...]:
    """Images, or tokens (of pairs, for two towers) with a mask of rows of different lengths."""
    generator = torch.Generator().manual_seed(1)
    if not is_token_model(variant):
        return (torch.rand(B, 1, 16, 16, generator=generator),)
    shape = (B, 2) if "towers" in variant else (B,)
    lengths = torch.tensor([N - 1, 1, N // 2, N - 3])[torch.arange(torch.Size(shape).numel()) % 4]
    tokens = torch.randint(0, 30, (*shape, N), generator=generator)
    return tokens, torch.arange(N) < lengths.view(*shape, 1)


def assert_same(logits: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert logits.shape == expected.shape and logits.isfinite().all()
    bound = tolerance * expected.abs().clamp_min(1.0)
    assert ((logits - expected).abs() <= bound).all()
    if logits.ndim == 2:  # of 256 pixels some lie between two classes
        assert torch.equal(logits.argmax(1), expected.argmax(1))


def labels(logits: Tensor) -> Tensor:
    """One for each sample, or each pixel."""
    return torch.arange(logits[:, 0].numel()).view(logits[:, 0].shape) % 5


Run = Callable[..., Tensor]


def eager(model: nn.Module, _: object = None) -> Run:
    """The model itself."""
    return torch.no_grad()(lambda *given: model(*given))


def folded(model: nn.Module, _: tuple[Tensor, ...]) -> Run:
    return eager(models.fold(model))


def torchscript(model: nn.Module, given: Any) -> Run:
    return eager(load_torchscript(to_torchscript(model, given if given[1:] else given[0])))


def onnx(model: nn.Module, given: Any) -> Run:
    graph = to_onnx(model, given if given[1:] else given[0], {})
    session = onnxruntime.InferenceSession(graph)
    names = [value.name for value in session.get_inputs()]

    def run(*given: Tensor) -> Tensor:
        feed = dict(zip(names, (each.numpy() for each in given), strict=True))
        return torch.from_numpy(session.run(["logits"], feed)[0])

    return run


def slow_but(chosen: Collection[str], *more: object) -> list[Any]:
    """All variants, of which the default run takes the chosen ones."""
    slow = {each: () if each in chosen else (pytest.mark.slow,) for each in VARIANTS}
    return [pytest.param(each, *more, marks=slow[each]) for each in VARIANTS]


FORMS = {
    eager: VARIANTS,
    folded: {each for each in VARIANTS if "transject" in each} | {"transformer_orthogonal"},
    torchscript: {"fan_tiny_elliptical", "lra_transformer_elliptical"},
    onnx: {"fan_tiny_elliptical"},  # artifacts hold graphs of most others
}


@pytest.mark.parametrize(
    ("variant", "form"), [each for form in FORMS for each in slow_but(FORMS[form], form)]
)
def test_prediction_depends_on_neither_batch_nor_padding(
    variant: str, form: Callable[[nn.Module, tuple[Tensor, ...]], Run]
) -> None:
    model, given = build(variant), inputs(variant)
    run = form(model, given)
    together = run(*given)
    assert_same(together, eager(model)(*given))  # the form is the model
    alone = torch.cat([run(*(each[i : i + 1] for each in given)) for i in range(4)])
    assert_same(alone, together)
    if not is_token_model(variant):
        return
    tokens, mask = given
    used = [m.view(-1, 12).any(0) for m in mask]
    bare = [run(t[None, ..., u], m[None, ..., u]) for t, m, u in zip(*given, used, strict=True)]
    assert_same(torch.cat(bare), together)
    more = (*tokens.shape[:-1], 40 - 12)
    padding = torch.randint(0, 30, more, generator=torch.Generator().manual_seed(2))
    longer = torch.cat((torch.where(mask, tokens, 29), padding), -1)
    assert_same(run(longer, F.pad(mask, (0, 40 - 12))), together)


@pytest.mark.parametrize("variant", ["deit_tiny", "fan_tiny", "transject_image"])
def test_images_against_the_rules_are_refused(variant: str) -> None:
    for images, message in (
        (torch.rand(2, 1, 8, 32), r"images must be \(B, 1, 16, 16\), got \(2, 1, 8, 32\)"),
        (torch.rand(2, 1, 17, 17), r"images must be \(B, 1, 16, 16\), got \(2, 1, 17, 17\)"),
        (torch.rand(2, 3, 16, 16), r"images must be \(B, 1, 16, 16\), got \(2, 3, 16, 16\)"),
        (torch.rand(1, 16, 16), r"images must be \(B, 1, 16, 16\), got \(1, 16, 16\)"),
        (torch.ones(2, 1, 16, 16, dtype=torch.uint8), "floating point type, got torch.uint8"),
    ):
        with pytest.raises(ValueError, match=message):
            build(variant)(images)
    name, overrides = VARIANTS[variant]  # a channel is not broadcast to the others
    with pytest.raises(ValueError, match=r"images must be \(B, 3, 16, 16\), got \(2, 1, 16, 16\)"):
        models.build(name, **overrides | {"in_chans": 3})(torch.rand(2, 1, 16, 16))


@pytest.mark.parametrize("name", ["deit_tiny", "fan_tiny", "transject_image"])
def test_statistics_are_rounded_once_to_the_precision_of_the_model(name: str) -> None:
    model = models.build(name, **VARIANTS[name][1] | {"mean": (0.3,), "std": (0.7,)})
    assert isinstance(model, ImageModel)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float64):
        model.to(dtype)
        for statistics, value in ((model.mean, 0.3), (model.std, 0.7)):
            assert torch.equal(statistics, torch.tensor([[[[value]]]], dtype=dtype))
    assert not {"mean", "std"} & set(model.state_dict())


@pytest.mark.parametrize("variant", list(filter(is_token_model, VARIANTS)))
def test_no_mask_means_that_every_token_is_real(variant: str) -> None:
    model, (tokens, _) = eager(build(variant)), inputs(variant)
    assert_same(model(tokens), model(tokens, torch.ones_like(tokens, dtype=torch.bool)))


@every_model
def test_every_parameter_receives_a_gradient(variant: str) -> None:
    model = build(variant).train()
    given = inputs(variant)
    if hasattr(model, "logits_and_reconstruction"):
        logits, reconstruction = cast(Any, model).logits_and_reconstruction(*given)
    else:
        logits, reconstruction = model(*given), 0.0
    loss = F.cross_entropy(logits, labels(logits)) + reconstruction
    loss.backward()
    # Padded positions have no part in anything, and neither has a position after the last token.
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize(
    ("name", "share"),
    [
        *(
            (name, "dropout")
            for name in models.names()
            if name.startswith(("lra", "transformer", "segmenter"))
        ),
        *(
            (name, "drop_path")
            for name in ("deit_tiny_elliptical", "fan_tiny", "rvt_tiny", "segmenter_tiny")
        ),
    ],
)
def test_training_alone_drops_what_the_config_says(name: str, share: str) -> None:
    torch.manual_seed(0)
    _, overrides = VARIANTS[name]
    overrides = overrides | {each: 0.0 for each in SHARES if hasattr(models.config(name), each)}
    model, whole = (models.build(name, **overrides | {share: value}) for value in (0.5, 0.0))
    given = [each[:1].expand(32, *each.shape[1:]) for each in inputs(name)]  # of one sample

    def apart(model: nn.Module) -> float:
        logits = model(*given).detach()
        return float((logits - logits[:1]).abs().max())

    assert apart(model.train()) > 1e-3
    assert max(apart(model.eval()), apart(whole.train()), apart(whole.eval())) < 1e-5
    assert whole.state_dict().keys() == model.state_dict().keys()


@every_model
def test_logits_are_finite_for_constant_zero_and_huge_inputs(variant: str) -> None:
    model = eager(build(variant))
    given = inputs(variant)
    if is_token_model(variant):
        assert model(torch.zeros_like(given[0]), given[1]).isfinite().all()
        return
    for fill in (0.0, 0.5, 1.0, 1e6, -1e6):
        assert model(torch.full_like(given[0], fill)).isfinite().all(), fill


@every_model
def test_float64_is_float32_with_less_rounding(variant: str) -> None:
    given = inputs(variant)
    model = build(variant)
    single = eager(model)(*given)
    wide = (given[0].double(),) if len(given) == 1 else given
    double = eager(model.double())(*wide)
    assert double.dtype == torch.float64
    assert_same(single, double.float())


@every_model
def test_bfloat16_autocast_comes_close(variant: str) -> None:
    model, given = build(variant), inputs(variant)
    exact = eager(model)(*given)
    with torch.autocast("cpu", torch.bfloat16):
        close = eager(model)(*given)
    assert close.isfinite().all()
    assert (close.float() - exact).abs().max() <= 0.05 * exact.abs().max().clamp_min(1.0)


@pytest.mark.parametrize("variant", slow_but({"lra_transformer_elliptical"}))
def test_torch_export_keeps_batch_and_length_free(variant: str) -> None:
    model, given = build(variant), inputs(variant)
    shape: dict[int, object] = {0: torch.export.Dim("batch", min=1)}
    if is_token_model(variant):
        shape[given[0].ndim - 1] = torch.export.Dim("length", min=1, max=40)
    shapes = (shape,) * len(given)
    program = torch.export.export(model, given, dynamic_shapes=shapes).module()
    for B, N in ((1, 12), (3, 5), (7, 40)):
        given = inputs(variant, B, N)
        assert_same(eager(program)(*given), eager(model)(*given))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("variant", "backend"),
    [
        *slow_but({"lra_transformer_elliptical"}, "aot_eager"),
        *slow_but((), "inductor"),
    ],
)
def test_torch_compile_traces_the_whole_inference_and_training_step(
    variant: str, backend: str
) -> None:
    torch.compiler.reset()
    model, given = build(variant), inputs(variant)
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    with torch.inference_mode():
        assert_same(compiled(*given), model(*given), tolerance=1e-4)
    logits = compiled(*given)
    assert_same(logits.detach(), eager(model)(*given), tolerance=1e-4)
    F.cross_entropy(logits, labels(logits)).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


@pytest.mark.parametrize(
    "variant", slow_but({"deit_tiny_elliptical", "transject", "lra, nystromformer"})
)
def test_device_holds_every_tensor_and_is_never_waited_for(
    variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = build(variant), models.fold(build(variant))

    def autocast(device: str, **_: object) -> contextlib.AbstractContextManager[None]:
        assert device == "meta"
        return contextlib.nullcontext()

    monkeypatch.setattr(torch, "autocast", autocast)
    monkeypatch.setattr(TokenModel, "check", lambda *_, **__: None)  # it looks at the ids
    for model in both:
        model = model.to("meta")  # where no tensor has values, and none meets one of the CPU
        given = [each.to("meta") for each in inputs(variant)]
        with torch.inference_mode():
            assert model(*given).is_meta
        logits = model(*given)
        if logits.requires_grad:
            F.cross_entropy(logits, labels(logits).to("meta")).backward()
            assert all(parameter.grad is not None for parameter in model.parameters())


def score(logits: Tensor) -> Tensor:
    """The sum of a function of each image alone, or of each pixel."""
    return (logits.movedim(1, -1).sin() @ torch.arange(1.0, 6.0, dtype=torch.float64)).sum()


@pytest.mark.parametrize(
    "name",
    [
        "deit_tiny",
        "deit_tiny_elliptical",
        "fan_tiny",
        "fan_tiny_elliptical",
        "transject_image",
        "rvt_tiny",
        "segmenter_tiny_elliptical",
    ],
)
@pytest.mark.parametrize("count", [1, 3])
def test_gradients_agree_with_finite_differences(name: str, count: int) -> None:
    model, x, step = build(name).double(), inputs(name, count)[0].double(), 1e-6
    parameters = [x.requires_grad_(), *model.parameters()]
    with metric_gradient(model, True):
        found = torch.autograd.grad(score(model(x)), parameters)
    tensors = [parameter.detach() for parameter in parameters]
    generator = torch.Generator().manual_seed(2)
    for moved in [*[slice(0, 1)] * 3, *[slice(1, None)] * 3]:  # the images, then the parameters
        directions = [
            torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            for tensor in tensors[moved]
        ]
        ends = []
        for distance in (step, -2 * step, step):  # there, to the other side, and back
            for tensor, direction in zip(tensors[moved], directions, strict=True):
                tensor.add_(direction, alpha=distance)
            ends.append(score(eager(model)(x)))
        slope = (ends[0] - ends[1]) / (2 * step)
        expected = sum((g * d).sum() for g, d in zip(found[moved], directions, strict=True))
        assert (slope - expected).abs() < 1e-6 * (1 + slope.abs())


def test_variants_cover_every_name() -> None:
    assert {name for name, _ in VARIANTS.values()} | set(SIZES) == set(models.names())


@pytest.mark.parametrize(("name", "tiny"), SIZES.items())
def test_other_sizes_are_the_same_model(name: str, tiny: str) -> None:
    _, overrides = VARIANTS[tiny]
    assert models.config(name, **overrides) == models.config(tiny, **overrides)
    model, same = models.build(name, **overrides), models.build(tiny, **overrides)
    assert str(model) == str(same)


@pytest.mark.parametrize("name", models.names())
def test_config_survives_json_and_rebuilds_the_model(name: str) -> None:
    config = models.config(name)
    as_json = json.dumps(dataclasses.asdict(config))
    assert models.config(name, **json.loads(as_json)) == config
