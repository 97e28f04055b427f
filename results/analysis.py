"""What a trained model does on real test data: layer by layer, and when words are swapped.

The figures by layer are those of TransJect, section 6, and of Elliptical Attention, appendix F.2
and F.3; `models.analysis.diagnostics` defines each.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from core.progress import Bar
from core.stats import mcnemar, wilson
from data.formats.documents import split_documents
from data.sources import open_texts
from data.tokenizer import load_tokenizer, tokenize
from models.analysis.diagnostics import Diagnostics, diagnose
from models.analysis.observation import observe
from models.transject import Layer
from results import isomap
from robustness.attacks.word_swap import swap_words
from robustness.tasks import NextTokens, quotient
from runtimes.surprise import score_tokens
from training import run as records
from training.distributed import Processes
from training.recipe import LanguageData, Recipe, TextData
from training.run import trained_model
from training.samples import Samples, Sequences, to_model
from training.splits import open_test, some
from training.validation import predict

BY_LAYER = {
    "activation_factor": "activation factor of a layer",
    "total_factor": "activation factor up to a layer",
    "entropy": "entropy of activations (nats)",
    "expert_entropy": "entropy within experts (nats)",
    "cosine_similarity": "cosine similarity of tokens",
    "head_entropy": "entropy within heads (nats)",
    "head_redundancy": "distance between heads' maps",
    "key_perturbation": "change of keys from the layer before",
    "routing_entropy": "entropy of the router (nats)",
    "dropped": "share of choices without room",
}
"""Figures with one value for each sample and layer, and their titles."""
_ROUTING = {"expert_load": "load", "routing_entropy": "entropy", "dropped": "dropped"}
"""Figures of mixtures, and their names in `Routing`."""
BINS = 20
"""Bins of the histogram of expert weights, over [0, 1]."""
_SPREAD = (0.05, 0.95)
_ALL_TOKENS = 1 << 30  # of a text


def analyze(folder: Path, *, count: int | None = None, progress: bool = False) -> dict[str, Any]:
    """Look into the best weights of a run.

    Args:
        folder: of the run.
        count: test samples, drawn by a fixed seed, so that the runs of a task see the same ones;
            None takes all.
        progress: show a progress bar.

    Returns:
        Of `BY_LAYER` the mean and the 5 % and 95 % quantiles over samples, one per layer, as far as
        the model has them; `bounds` of TransJect's total factor; its `expert_weights`;
        `expert_load`, of each layer the mean load of the experts of its mixture; the `correlation`
        of activation factor and entropy over samples and layers; and `isomap`, places of tokens of
        some samples as the last layer gave them, with the samples' labels, if they have any.

    Raises:
        ValueError: the folder holds no run, or its data cannot be read.
    """
    recipe = records.recorded_recipe(folder)
    model = trained_model(folder, recipe)
    samples = open_test(recipe, folder / records.TOKENIZER, count=count)
    seen: defaultdict[str, list[Tensor]] = defaultdict(list)
    indices = range(len(samples))
    for index in Bar(indices, folder.name, unit="sample", disable=not progress):
        # One by one: distances between all tokens of long sequences fill the memory.
        inputs = to_model(samples.batch(np.array([index])), torch.device("cpu"))
        for name, values in _figures(diagnose(model, *inputs)).items():
            seen[name].append(values)
    figures = {name: torch.cat(parts).double().numpy() for name, parts in seen.items()}
    weights, load = (figures.get(f"expert_{name}") for name in ("weights", "load"))
    return {
        "samples": len(indices),
        "figures": {name: _summary(figures[name]) for name in BY_LAYER if name in figures},
        "bounds": _bounds(model),
        "expert_weights": None if weights is None else _shares(weights),
        "expert_load": None if load is None else _loads(load),
        "correlation": _correlation(figures["activation_factor"], figures["entropy"]),
        "isomap": _isomap(model, samples) if recipe.data.labeled else None,
    }


def _isomap(model: nn.Module, samples: Samples) -> dict[str, Any] | None:
    """Places of tokens of the first samples, and the label of each; None without one label each."""
    if samples.labels.ndim > 1:
        return None
    tokens: list[np.ndarray] = []
    labels: list[int] = []
    for index in range(min(isomap.SAMPLES, len(samples))):
        inputs = to_model(samples.batch(np.array([index])), torch.device("cpu"))
        tokens.append(isomap.tokens_of(observe(model, *inputs).layers[-1]))
        labels += [int(samples.labels[index])] * len(tokens[-1])
    places = isomap.embed(np.concatenate(tokens))
    return None if places is None else {**places, "labels": labels}


def _figures(found: Diagnostics) -> dict[str, Tensor]:
    """What is kept of one sample; each (S, L), of experts' weights and loads (S, L, E)."""
    figures = {name: getattr(found, name, None) for name in (*BY_LAYER, "expert_weights")}
    if found.expert_entropy is not None:
        figures["expert_entropy"] = found.expert_entropy.mean(-1)
    figures["key_perturbation"] = _by_layer(found.key_perturbations)
    for key, name in _ROUTING.items():
        figures[key] = _by_layer([getattr(each, name, None) for each in found.routing])
    return {name: values for name, values in figures.items() if values is not None}


def _by_layer(figures: Sequence[Tensor | None]) -> Tensor | None:
    """Figures of layers side by side, NaN in those that have none; None where none has."""
    some = next((figure for figure in figures if figure is not None), None)
    if some is None:
        return None
    none = torch.full_like(some, torch.nan)
    return torch.stack([none if figure is None else figure for figure in figures], dim=1)


def _summary(values: np.ndarray) -> dict[str, list[float | None]]:
    """Of (S, L) values, those that are finite; a layer without any has None."""
    columns = [column[np.isfinite(column)] for column in values.T]
    low, high = (partial(np.quantile, q=end) for end in _SPREAD)
    return {
        name: [_rounded(figure(column)) if len(column) else None for column in columns]
        for name, figure in (("mean", np.mean), ("low", low), ("high", high))
    }


def _shares(weights: np.ndarray) -> dict[str, Any]:
    """Mean (L, E) and histogram (L, BINS) of the experts' shares (S, L, E)."""
    bins = [np.histogram(layer, BINS, (0, 1))[0] for layer in weights.transpose(1, 0, 2)]
    return {
        "mean": [[_rounded(share) for share in layer] for layer in weights.mean(0)],
        "histogram": [[_rounded(part) for part in counts / counts.sum()] for counts in bins],
    }


def _loads(load: np.ndarray) -> list[list[float] | None]:
    """Means (L, E) of loads (S, L, E); None of a layer without a mixture."""
    means = load.mean(0)
    return [None if np.isnan(layer).any() else [*map(_rounded, layer)] for layer in means]


@torch.no_grad()
def _bounds(model: nn.Module) -> dict[str, list[float]] | None:
    """Of the total factor after each layer: products of (1 -+ |alpha| / L)^2; None without any.

    Source: TJ section 4; see `models.transject`.
    """
    steps = [abs(float(layer.step)) for layer in model.modules() if isinstance(layer, Layer)]
    ends = {"low": 1 - np.array(steps), "high": 1 + np.array(steps)}
    bounds = {name: [_rounded(v) for v in (end**2).cumprod()] for name, end in ends.items()}
    return bounds if steps else None


def _correlation(factor: np.ndarray, entropy: np.ndarray) -> float | None:
    """Pearson's, over samples and layers; None where one of them does not vary."""
    finite = np.isfinite(factor) & np.isfinite(entropy)
    x, y = factor[finite], entropy[finite]
    if len(x) < 2 or x.std() == 0 or y.std() == 0:
        return None
    return _rounded(np.corrcoef(x, y)[0, 1])


def _rounded(value: float) -> float:
    """Five digits: records are for people, and kept in the repository."""
    return float(f"{value:.5g}")


def evaluate_swapped(
    folder: Path, *, rate: float, seed: int, count: int | None = None, progress: bool = False
) -> dict[str, Any]:
    """Evaluate the best weights of a run on test texts as they are, and with words swapped.

    Rate and seed are those of `robustness.attacks.word_swap`; `count` test texts are drawn by a
    fixed seed, None takes all.

    Returns:
        `clean`, `swapped`, and `robust`, the share right on both, each with its interval; and
        McNemar's `p_value` for clean and swapped being alike. Of a language model the perplexities
        `clean` and `swapped`, and their `ratio`, each with a bootstrap interval over texts.

    Raises:
        ValueError: the folder holds no run on texts, or its data cannot be read.
    """
    recipe = records.recorded_recipe(folder)
    data = recipe.data
    if isinstance(data, LanguageData):
        swap = partial(swap_words, rate=rate, seed=seed)
        found = _perplexities(folder, recipe, swap, count, progress=progress)
        return {"rate": rate, "seed": seed} | found
    if not isinstance(data, TextData):
        raise ValueError(f"{folder.name} must be a run on texts, got data of {data.source}")
    texts = open_texts(data.source, split="test", own_split=True, label_names=recipe.labels)
    texts = texts.take(some(len(texts), count))
    tokenizer = load_tokenizer(folder / records.TOKENIZER)
    device = Processes().device
    model = trained_model(folder, recipe).to(device)

    def right(name: str, share: float) -> np.ndarray:
        """Which texts are answered as labeled with a share of their words swapped, (N,) bool."""
        swapped = texts.changed(partial(swap_words, rate=share, seed=seed))
        samples = Sequences(tokenize(swapped, tokenizer, max_len=data.max_len))
        shown = f"{folder.name}, {name}" if progress else None
        return predict(model, samples, device, progress=shown) == samples.labels

    clean, swapped = right("clean", 0.0), right("swapped", rate)
    asked = {"rate": rate, "seed": seed, "samples": len(texts)}
    return asked | {
        "clean": _figure(clean),
        "swapped": _figure(swapped),
        "robust": _figure(clean & swapped),
        "p_value": mcnemar(int((clean & ~swapped).sum()), int((swapped & ~clean).sum())),
    }


def _perplexities(
    folder: Path, recipe: Recipe, swap: Callable[[str], str], count: int | None, *, progress: bool
) -> dict[str, Any]:
    """How well a language model predicts test texts as they are and changed, text by text."""
    data: Any = recipe.data
    documents = split_documents(data.source, data.valid, data.test, recipe.seed)["test"]
    texts = [text.decode() for text in documents.take(some(len(documents), count)).texts]
    tokenizer = load_tokenizer(folder / records.TOKENIZER)
    device = Processes().device
    model = trained_model(folder, recipe).to(device)

    @torch.no_grad()
    def ask(tokens: np.ndarray) -> np.ndarray:
        """Logits (B, N, V) for tokens (B, N)."""
        return model(torch.from_numpy(tokens).to(device)).float().cpu().numpy()

    def table(name: str, given: Sequence[str]) -> np.ndarray:
        """Losses and tokens, see `NextTokens.tables`."""
        rows = tokenizer.ids(given, _ALL_TOKENS)
        shown = Bar(rows, f"{folder.name}, {name}", unit="text", disable=not progress)
        scored = [score_tokens(ids, data.context, ask) for ids in shown]
        none = np.empty((len(texts), 0), np.int64)
        return NextTokens().tables(np.array(scored, np.float64), none)

    clean, changed = table("clean", texts), table("swapped", [swap(text) for text in texts])
    wanted = {"clean": (clean, None), "swapped": (changed, None), "ratio": (changed, clean)}
    found = {name: quotient(*tables) for name, tables in wanted.items()}
    figures = {
        name: {"value": each["perplexity"], "ci": each["perplexity_ci"]}
        for name, each in found.items()
    }
    return {"samples": len(texts), **figures}


def _figure(right: np.ndarray) -> dict[str, Any]:
    return {"top1": float(right.mean()), "ci": wilson(int(right.sum()), len(right))}
