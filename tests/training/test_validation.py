import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data.token_set import Ragged, TokenSet
from training.distributed import Processes
from training.recipe import AdversarialRecipe
from training.samples import Sequences, StoredImages
from training.validation import evaluate


def images(count: int = 40) -> StoredImages:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, 1, 2, 2), dtype=np.uint8)
    return StoredImages(pixels, random.integers(0, 8, count))


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 8)).train()


@torch.no_grad()
def test_figures_are_those_of_one_pass_in_eval_mode() -> None:
    model, samples = linear(), images()
    found = evaluate(model, samples, Processes())
    logits = model.eval()(samples.pixels.float() / 255)
    labels = torch.from_numpy(samples.labels)
    best = logits.topk(5).indices == labels[:, None]
    assert found == pytest.approx(
        {
            "accuracy": float(best[:, 0].float().mean()),
            "loss": float(F.cross_entropy(logits, labels)),
            "top5_accuracy": float(best.any(1).float().mean()),
        }
    )


def test_attacked_accuracy_is_not_above_the_clean_one() -> None:
    recipe = AdversarialRecipe(eps=0.2, alpha=0.1, steps=5)
    model = linear()
    clean = evaluate(model, images(), Processes())["accuracy"]
    attacked = evaluate(model, images(), Processes(), adversarial=recipe)
    assert attacked.keys() == {"accuracy"} and attacked["accuracy"] < clean


class Length(nn.Module):
    """Says how many real tokens a sample has, whatever else is in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[tuple[int, ...]] = []

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        self.batches.append(tuple(tokens.shape))
        return F.one_hot(mask.sum(1) % 4, 4).float()


def test_long_sequences_come_in_smaller_batches_of_like_lengths() -> None:
    lengths = np.random.default_rng(0).permutation(np.arange(1, 1201))
    ragged = Ragged.of((np.zeros(length) for length in lengths), np.uint8)
    tokens = TokenSet(
        sequences=(ragged,), labels=lengths % 4, label_names=list("abcd"), vocab_size=1,
        seq_len=1200, pad=0, description="lengths",
    )  # fmt: skip
    model = Length()
    assert evaluate(model, Sequences(tokens), Processes())["accuracy"] == 1
    assert all(batch * longest <= 64_000 for batch, longest in model.batches)
    assert sum(batch * longest for batch, longest in model.batches) < 1.3 * lengths.sum()
