"""A linear classifier, a bag of words, whose best attacks are known, and tiny artifacts."""

import dataclasses
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import models
from data.images import ImageSpec
from data.sets import Origin
from data.sources import ImageSet, load_inputs, load_pixels, open_images
from data.tokenizer import TextTokenizer, train_wordpiece
from export.run import Run
from export.samples import Samples
from export.write import write_artifact
from models.checkpoints import save_weights
from models.inference.fold import fold
from robustness.target import ImageTarget
from robustness.text_target import TextTarget
from runtimes.base import Inputs
from runtimes.manifest import TextSpec
from tests.conftest import Once

SIZE = 6


class Linear(nn.Module):
    """logits = W x + b on flattened pixels, with a dropout that only training mode shows."""

    def __init__(self, num_classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        self.dropout = nn.Dropout(0.5)
        self.linear = nn.Linear(SIZE * SIZE, num_classes)
        with torch.no_grad():
            self.linear.weight.copy_(torch.randn(self.linear.weight.shape, generator=draw) * scale)
            self.linear.bias.copy_(-self.linear.weight.sum(1) / 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.linear(self.dropout(images.flatten(1)))


class Rowwise(nn.Module):
    """Two layers without a matrix product: a row's bits do not depend on the rest of the batch."""

    def __init__(self, channels: int = 1, num_classes: int = 10) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(1)
        self.dropout = nn.Dropout(0.5)
        self.inner = nn.Parameter(torch.randn((16, 64 * channels), generator=draw) / 4)
        self.outer = nn.Parameter(torch.randn((num_classes, 16), generator=draw))

    def forward(self, images: Tensor) -> Tensor:
        rows = self.dropout(images.flatten(1))[:, None]
        hidden = torch.tanh((rows * self.inner - self.inner / 2).sum(-1))
        return (hidden[:, None] * self.outer).sum(-1)


def make_target(num_classes: int = 2, *, scale: float = 1.0) -> ImageTarget:
    """The linear model."""
    target = image_target(Linear(num_classes, scale=scale).eval(), num_classes, side=SIZE)
    digest = f"linear-{num_classes}".ljust(64, "0")
    return dataclasses.replace(target, name="linear", digest=digest)


def make_images(count: int = 40, *, num_classes: int | None = 2) -> ImageSet:
    """Grey noise far from black and white, so that clipping to [0, 1] never acts."""
    draw, names = np.random.default_rng(0), [f"{i}.png" for i in range(count)]
    pixels = draw.integers(96, 160, (count, SIZE, SIZE), dtype=np.uint8)
    labels = None if num_classes is None else draw.integers(0, num_classes, count)
    classes = None if num_classes is None else [str(i) for i in range(num_classes)]
    return ImageSet(
        names=names, labels=labels, label_names=None, reader=lambda i: Image.fromarray(pixels[i]),
        origin=Origin(name="noise", classes=classes),
    )  # fmt: skip


@pytest.fixture(scope="session")
def artifacts(once: Once) -> Path:
    """Of two vision transformers, "dot" and "elliptical", beside 40 labelled "images"."""
    return once("attacked", _make_artifacts)


def _make_artifacts(root: Path) -> None:
    draw = np.random.default_rng(0)
    for i in range(40):
        label = i % 3
        pixels = draw.integers(60, 100, (8, 8)) + 40 * label
        (root / "images" / f"Class-{label}").mkdir(parents=True, exist_ok=True)
        name = root / "images" / f"Class-{label}" / f"{i:03d}.png"
        Image.fromarray(pixels.astype(np.uint8)).save(name)
    _export("dot", "deit_tiny", root)
    _export("elliptical", "deit_tiny_elliptical", root)


def _export(name: str, architecture: str, root: Path) -> None:
    """Teach a tiny transformer brightness for a moment, and export it."""
    config = models.config(
        architecture, img_size=8, patch_size=4, in_chans=1, num_classes=3, embed_dim=16,
        num_heads=2, depth=3, mlp_ratio=2.0,
    )  # fmt: skip
    labels = ["class 0", "class 1", "class 2"]
    images = open_images(root / "images", label_names=labels)
    spec = ImageSpec(channels=1, height=8, width=8)
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(architecture, **dataclasses.asdict(config))
    assert images.labels is not None
    inputs, answers = torch.from_numpy(load_inputs(images, spec)), torch.from_numpy(images.labels)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), answers).backward()
        optimiser.step()
    run = run_of(root / f"run-{name}", architecture, model, labels, spec)
    thousand = images.take([i % len(images) for i in range(1000)])
    pixels = load_pixels(thousand, spec)
    samples = Samples(inputs=pixels, labels=thousand.labels, description="made")
    write_artifact(run, samples, root / name)


def run_of(
    folder: Path, architecture: str, model: Any, labels: list[str], spec: ImageSpec | TextSpec
) -> Run:
    """A folder of weights, ready for export; it is named after its last word."""
    folder.mkdir()
    save_weights(model, folder / "best.safetensors")
    name = folder.name.split("-")[-1]
    return Run(
        folder=folder, recipe={"name": name, "version": "1", "seed": 0, "data": {"source": "made"}},
        metrics={}, architecture=architecture, labels=labels, spec=spec,
        config=json.loads(json.dumps(dataclasses.asdict(model.config))),
    )  # fmt: skip


WORDS = (
    "the film was a very good one and not at all as bad as they say it is great dull awful "
    "lovely boring plot story people acting music scenes end"
).split()


class Bag(nn.Module):
    """logits = W mean(embeddings of real tokens), with a dropout that only training mode shows."""

    def __init__(self, vocab_size: int, num_classes: int = 2) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(5)
        self.embedding = nn.Embedding(vocab_size, 6)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, num_classes)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=draw))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Logits (B, K) of tokens and mask (B, N)."""
        x = self.embedding(tokens) * mask[..., None]
        return self.head(self.dropout(x.sum(1) / mask.sum(1, keepdim=True)))


class ModuleRuntime:
    """Serves a module as it is; texts one after the other, so that no other one can matter."""

    name, precision = "module", "fp32"

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def predict(self, inputs: Inputs) -> np.ndarray:
        if isinstance(inputs, np.ndarray):
            with torch.no_grad():
                return self.module(torch.from_numpy(inputs)).numpy()
        tokens, mask = torch.from_numpy(inputs["tokens"]), torch.from_numpy(inputs["mask"])
        with torch.no_grad():
            rows = [self.module(t[m][None], m[m][None]) for t, m in zip(tokens, mask, strict=True)]
        return torch.cat(rows).float().numpy()


def image_target(
    torch_model: nn.Module, num_classes: int = 10, channels: int = 1, side: int = 8
) -> ImageTarget:
    """A model of small images, served as it is."""
    return ImageTarget(
        name="small", version="1", digest="", labels=["class"] * num_classes,
        image_spec=ImageSpec(channels=channels, height=side, width=side),
        runtime=ModuleRuntime(deepcopy(torch_model).eval()), torch_model=torch_model,
    )  # fmt: skip


def target_of(
    torch_model: nn.Module, tokenizer: TextTokenizer, classes: list[str], *, max_len: int = 24
) -> TextTarget:
    return TextTarget(
        name="small", version="1", digest="0" * 64, labels=classes, tokenizer=tokenizer,
        max_len=max_len, runtime=ModuleRuntime(deepcopy(torch_model).eval()),
        torch_model=torch_model,
    )  # fmt: skip


@pytest.fixture
def bag() -> TextTarget:
    """Every word of `WORDS` is a token, and so is every letter of them."""
    tokenizer = train_wordpiece([" ".join(WORDS)] * 3, vocab_size=200)
    return target_of(Bag(tokenizer.vocab_size), tokenizer, ["neg", "pos"])


@pytest.fixture
def provable(bag: TextTarget) -> TextTarget:
    """A TransJect that reads each token by itself, with the same tokenizer."""
    tokenizer = bag.require_tokenizer()
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(
            "transject_random", vocab_size=tokenizer.vocab_size, seq_len=24, embed_dim=8, depth=1,
            num_experts=1,
        ).eval()  # fmt: skip
        parameters = dict(model.named_parameters())
        nn.init.normal_(parameters["encoder.layers.0.r"])
        nn.init.zeros_(parameters["head.bias"])
    target = target_of(model, tokenizer, ["neg", "pos"])
    return dataclasses.replace(target, runtime=ModuleRuntime(fold(model)))


def provable_images(num_classes: int = 10) -> ImageTarget:
    """A TransJect that reads each patch by itself, undecided about what is gray."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(
            "transject_image", img_size=8, patch_size=4, in_chans=1, mean=(0.5,), std=(0.5,),
            embed_dim=32, depth=1, num_experts=1, random_eigenvalues=True, num_classes=num_classes,
        ).eval()  # fmt: skip
        parameters = dict(model.named_parameters())
        nn.init.normal_(parameters["encoder.layers.0.r"])
        with torch.no_grad():
            parameters["head.bias"] -= model(torch.full((1, 1, 8, 8), 0.5))[0]
    target = image_target(model, num_classes)
    digest = f"provable-{num_classes}".ljust(64, "0")
    return dataclasses.replace(target, digest=digest, runtime=ModuleRuntime(fold(model)))


@pytest.fixture(scope="session")
def texts() -> list[str]:
    draw = np.random.default_rng(0)
    return [" ".join(draw.choice(WORDS, draw.integers(3, 15))) for _ in range(12)]


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Generators, weights, gradients, modes and frozen parameters of a training model stay."""
    frozen, *parameters = model.train().parameters()
    frozen.requires_grad_(False)
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    drawn = torch.get_rng_state(), random.getstate(), str(np.random.get_state())
    yield
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert (random.getstate(), str(np.random.get_state())) == drawn[1:]
    assert all(part.training and not part._forward_hooks for part in model.modules())
    assert not frozen.requires_grad and frozen.grad is None
    assert all(p.requires_grad and bool((cast(Tensor, p.grad) == 1).all()) for p in parameters)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def contents(folder: Path) -> dict[str, bytes]:
    """The files of an evaluation's shards, by their paths."""
    found = sorted((folder / "shards").rglob("*"))
    return {str(p.relative_to(folder)): p.read_bytes() for p in found if p.is_file()}
