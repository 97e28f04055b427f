import argparse
import copy
import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import models
from models.checkpoints import load_public, load_weights, save_weights
from models.fan import FAN, from_public
from tests.models import plain_fan

SMALL = {"img_size": 16, "depth": 2, "num_classes": 3, "embed_dim": 12}


def deit(name: str = "deit_tiny", **overrides: Any) -> nn.Module:
    model = models.build(name, **SMALL | {"patch_size": 4} | overrides)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    return model.eval()


def same(model: nn.Module, state: Mapping[str, Tensor]) -> bool:
    own = model.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[key], state[key]) for key in own)


def test_weights_survive_a_round_trip_by_a_path_of_any_kind(tmp_path: Path) -> None:
    first, second, third = deit(), deit(), deit()
    path = tmp_path / "W.SafeTensors"
    save_weights(first, path)
    load_weights(second, str(path))
    load_public(third, str(path))
    assert same(second, first.state_dict()) and same(third, first.state_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["W.SafeTensors"]


@pytest.mark.parametrize("name", ["deit_tiny", "deit_tiny_elliptical"])
@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state},
        lambda state: {"state_dict": {f"module.{key}": state[key] for key in state}, "epoch": 3},
        lambda state: {f"module._orig_mod.{key}": state[key] for key in state},
        lambda state: {f"_orig_mod.module.{key}": state[key] for key in state},
        # What the training scripts of DeiT and Elliptical Attention write.
        lambda state: {
            "model": state,
            "optimizer": {"state": {}, "param_groups": [{"lr": 1e-3}]},
            "model_ema": {key: state[key] + 1 for key in state},
            "args": argparse.Namespace(model="deit_tiny_patch16_224", lr=5e-4),
        },
    ],
)
def test_public_files_load_by_name_into_both_attentions(
    tmp_path: Path, name: str, distilled: bool, wrap: Any
) -> None:
    public = deit(distilled=distilled)
    torch.save(wrap(public.state_dict()), tmp_path / "public.pth")
    model = deit(name, distilled=distilled)
    load_public(model, tmp_path / "public.pth")
    assert same(model, public.state_dict())


def test_public_safetensors_and_halves_load_too(tmp_path: Path) -> None:
    state = {key: value.half() for key, value in deit().state_dict().items()}
    save_file(state, tmp_path / "public.safetensors")
    model = deit("deit_tiny_elliptical")
    load_public(model, tmp_path / "public.safetensors")
    assert same(model, {key: value.float() for key, value in state.items()})


@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize("img_size", [8, 12, 24])
def test_positions_are_interpolated_for_another_image_size(
    tmp_path: Path, distilled: bool, img_size: int
) -> None:
    public, prefix = deit(distilled=distilled).state_dict(), 2 if distilled else 1
    save_file(public, tmp_path / "public.safetensors")
    model = deit(img_size=img_size, distilled=distilled)
    load_public(model, tmp_path / "public.safetensors")
    loaded = model.state_dict()["pos_embed"]
    assert torch.equal(loaded[:, :prefix], public["pos_embed"][:, :prefix])
    grid = public["pos_embed"][0, prefix:].double().T.view(1, 12, 4, 4)
    expected = F.interpolate(grid, (img_size // 4, img_size // 4), mode="bicubic")
    assert (loaded[0, prefix:] - expected[0].flatten(1).T).abs().max() < 1e-5
    assert model(torch.rand(2, 3, img_size, img_size)).isfinite().all()


def test_head_for_other_classes_is_refused_or_left_alone(tmp_path: Path) -> None:
    public = deit(num_classes=5, distilled=True).state_dict()
    torch.save({"model": public}, tmp_path / "public.pth")
    model = deit(distilled=True)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(
        ValueError, match="head.weight is for 5 classes, the model has 3; skip_head"
    ):
        load_public(model, tmp_path / "public.pth")
    assert same(model, before)
    load_public(model, tmp_path / "public.pth", skip_head=True)
    heads = {key for key in before if key.startswith("head")}
    assert len(heads) == 4
    assert same(model, public | {key: before[key] for key in heads})


def without(state: dict[str, Tensor], key: str) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if name != key}


def quantized(rows: int) -> Tensor:
    return torch.quantize_per_tensor(torch.rand(rows), 0.1, 0, torch.qint8)


UNFIT = [
    (lambda s: without(s, "norm.bias"), "missing tensors: norm.bias"),
    (lambda s: s | {"mean": torch.zeros(3)}, "unexpected tensors: mean$"),
    (lambda s: s | {"blocks.0.attn.paramR": torch.ones(1)}, "unexpected.*attn.paramR"),
    (lambda s: without(s, "cls_token") | {"token": torch.ones(1)}, "token; missing.*cls_token"),
    (lambda s: s | {"dist_token": s["cls_token"]}, "unexpected tensors: dist_token"),
    (lambda s: s | {"pos_embed": torch.ones(1, 12, 12)}, "must hold 1 . G x G tokens, got 12"),
    (lambda s: s | {"pos_embed": torch.ones(17, 12)}, "pos_embed must be .1, tokens, d."),
    (lambda s: s | {"norm.bias": torch.ones(5)}, r"norm.bias must be \(12,\), got \(5,\)"),
    (lambda s: {f"x{i}": torch.ones(1) for i in range(20)}, "x0, x1, x10.*…; missing"),
    (lambda s: {"model": {}}, "must hold a state dict"),
    (lambda s: [s], "must hold a state dict, got list"),
    (lambda s: s | {"epoch": 3}, "must map names to tensors, got 'epoch'"),
    (lambda s: s | {"pos_embed": torch.full((1, 5, 12), math.nan)}, "pos_embed must be finite"),
    (lambda s: s | {"pos_embed": torch.ones(1, 5, 0)}, "does not fit the model"),
    (lambda s: s | {"head.bias": torch.full((3,), -math.inf)}, "head.bias must be finite"),
    (
        lambda s: s | {"cls_token": torch.nested.nested_tensor([torch.rand(1, 12)])},
        "cls_token must be a dense tensor|not a readable|must hold weights alone",
    ),
]
UNFIT_BIASES = [
    (lambda: torch.rand(12).to_sparse(), "must be a dense tensor on the"),
    (lambda: torch.rand(12, device="meta"), "must be a dense.*on meta"),
    (lambda: quantized(12), "must be a dense tensor.*qint8"),
    (lambda: torch.rand(12).to(torch.complex64), "must hold floating point"),
    (lambda: torch.ones(12, dtype=torch.int64), "must hold floating point"),
    (lambda: torch.ones(12).bool(), "must hold floating point"),
    (lambda: torch.full((12,), math.nan), "must be finite"),
    (lambda: torch.ones(12).double() * 1e300, "must be finite in .*32"),
]
UNFIT += [
    (lambda s, make=make: s | {"norm.bias": make()}, f"norm.bias {rule}")
    for make, rule in UNFIT_BIASES
]


@pytest.mark.filterwarnings("ignore")  # torch's own, about how some of these tensors are made
@pytest.mark.parametrize(("change", "message"), UNFIT)
def test_files_that_do_not_fit_are_refused_and_change_nothing(
    tmp_path: Path, change: Any, message: str
) -> None:
    model = deit()
    before = copy.deepcopy(model.state_dict())
    torch.save(change(deit().state_dict()), tmp_path / "public.pth")
    with warnings.catch_warnings(), pytest.raises(ValueError, match=message):
        warnings.simplefilter("error")
        load_public(model, tmp_path / "public.pth")
    assert same(model, before)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head.bias": torch.full((3,), math.nan)}, "head.bias must be finite"),
        ({"head.bias": torch.ones(5)}, "head.bias is for 5 classes, the model has 3$"),
        ({"head.bais": torch.ones(3)}, "unexpected tensors: head.bais$"),
    ],
)
def test_own_weights_are_copied_all_or_none(
    tmp_path: Path, change: dict[str, Tensor], message: str
) -> None:
    model = deit()
    before = copy.deepcopy(model.state_dict())
    save_file(deit().state_dict() | change, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=f"w.safetensors does not fit the model: .*{message}"):
        load_weights(model, tmp_path / "w.safetensors")
    assert same(model, before)


def test_counters_of_a_batch_norm_are_integers(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(2)
    counted = {"num_batches_tracked": torch.tensor(7, dtype=torch.int32)}
    save_file(model.state_dict() | counted, tmp_path / "w.safetensors")
    load_weights(model, tmp_path / "w.safetensors")
    assert model.num_batches_tracked == torch.tensor(7)
    save_file(model.state_dict() | {"num_batches_tracked": torch.tensor(7.5)}, tmp_path / "b.st")
    with pytest.raises(ValueError, match="num_batches_tracked must hold integers, got .*float32"):
        load_weights(model, tmp_path / "b.st")


@pytest.mark.parametrize("load", [load_weights, load_public])
def test_a_model_without_memory_is_refused(tmp_path: Path, load: Any) -> None:
    save_weights(deit(), tmp_path / "w.safetensors")
    model = deit().to("meta")
    with pytest.raises(ValueError, match="model must be in memory, got cls_token on the device me"):
        load(model, tmp_path / "w.safetensors")


class Malicious:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickle_that_would_run_code_is_refused_and_runs_none(
    tmp_path: Path, legacy: bool
) -> None:
    content = {"model": deit().state_dict(), "extra": Malicious(tmp_path / "owned")}
    torch.save(content, tmp_path / "bad.pth", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(ValueError, match="bad.pth must hold weights alone"):
        load_public(deit(), tmp_path / "bad.pth")
    assert not (tmp_path / "owned").exists()


def test_public_fan_weights_are_translated(tmp_path: Path) -> None:
    sizes = {"img_size": 16, "depth": 1, "embed_dim": 16, "num_heads": 2, "num_classes": 3}
    model = models.build("fan_tiny_elliptical", **sizes)
    assert isinstance(model, FAN)
    public = plain_fan.public_weights(model.config)
    torch.save({"state_dict": public}, tmp_path / "public.pth")
    load_public(model, tmp_path / "public.pth")
    expected = {
        key: value.to(model.state_dict()[key].dtype) for key, value in (from_public(public).items())
    }
    assert same(model, expected)
    torch.save(without(public, "blocks.0.attn.q.weight"), tmp_path / "cut.pth")
    with pytest.raises(ValueError, match="cut.pth does not fit the model: .*attn.q.weight"):
        load_public(model, tmp_path / "cut.pth")


@pytest.mark.parametrize(
    ("load", "name"),
    [(load_public, "bad.pth"), (load_public, "bad.safetensors"), (load_weights, "bad.safetensors")],
)
def test_a_broken_or_missing_file_is_refused(tmp_path: Path, load: Any, name: str) -> None:
    with pytest.raises(ValueError, match="No such file|not a readable"):
        load(deit(), tmp_path / name)
    for content in (b"", b"nothing of the kind", b"PK\x03\x04 cut"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            load(deit(), tmp_path / name)
