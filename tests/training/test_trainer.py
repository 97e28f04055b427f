import csv
import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.nn import functional as F

import models
from data.token_set import Ragged, TokenSet
from models.checkpoints import save_weights
from tests.training.conftest import start
from training import run as records
from training.__main__ import main
from training.distributed import Processes
from training.objective import Objective
from training.recipe import AdversarialRecipe
from training.samples import Sequences, StoredImages
from training.tasks import Classification
from training.trainer import Trainer
from training.validation import evaluate


def column(path: Path, name: str) -> list[str]:
    return [row[name] for row in csv.DictReader(path.read_text().splitlines())]


def test_run_learns_and_records_what_came_out(
    recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recipe_file.parent / "run"
    options = ["train.epochs=5", "logs=[tensorboard]", "--output", str(run)]
    assert main(["fit", str(recipe_file), *options]) == 0
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["test_accuracy"] > 0.9
    assert metrics["train_samples"] == 128 and metrics["valid_samples"] == 32
    assert metrics["steps"] == 40 and metrics["epochs"] == 5
    assert len(metrics["data_digest"]) == 64 and metrics["environment"]["torch"]
    printed = capsys.readouterr()
    assert json.loads(printed.out.partition("run:")[0]) == metrics
    assert printed.err.count("valid_accuracy") == 5 and "\r" not in printed.err  # no terminal
    assert [float(epoch) for epoch in column(run / "history.csv", "epoch")] == [1, 2, 3, 4, 5]
    assert column(run / "steps.csv", "step") == ["20", "40"]
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [20, 40]
    assert [event.step for event in events.Scalars("valid/accuracy")] == [8, 16, 24, 32, 40]
    assert records.recorded_recipe(run).train.epochs == 5
    session = json.loads((run / "run.json").read_text())["sessions"][0]
    assert session["step"] == 0 and len(session["commit"].rstrip("+")) == 40
    assert main(["fit", str(recipe_file), "--output", str(run)]) == 2
    assert "already holds a run" in capsys.readouterr().err
    under_a_file = str(recipe_file / "run")
    assert main(["fit", str(recipe_file), "--output", under_a_file]) == 2


def test_segmenter_learns_to_find_squares(mask_recipe: Path) -> None:
    metrics = start(mask_recipe, "run", "train.epochs=40", "data.flip=true").run()
    assert metrics["train_samples"] == 16 and metrics["test_item_mean_iou"] > 0.4
    assert metrics["test_accuracy"] > metrics["majority_accuracy"] > 0.7
    lazy = ["data.in_memory=false", "data.random_crop=true", "train.epochs=1"]
    metrics = start(mask_recipe, "lazy", *lazy).run()
    assert "test_mean_iou" in metrics and "majority_accuracy" not in metrics


def test_segmenter_starts_from_a_classifier_or_from_its_own_weights(mask_recipe: Path) -> None:
    folder, key = mask_recipe.parent, "blocks.1.attn.qkv.weight"
    sizes = {"img_size": 16, "patch_size": 2, "in_chans": 1, "embed_dim": 16, "num_heads": 2}
    first = models.build("deit_tiny", depth=2, mlp_ratio=2.0, num_classes=7, **sizes)
    save_weights(first, folder / "deit.safetensors")
    torch.save({"model": first.state_dict()}, folder / "deit.pth")
    for name in ("deit.safetensors", "deit.pth"):
        model = start(mask_recipe, f"from {name}", f"init={folder / name}").model
        assert torch.equal(model.state_dict()[f"encoder.{key}"], first.state_dict()[key])
    save_weights(model, folder / "own.safetensors")
    again = start(mask_recipe, "again", "seed=1", f"init={folder / 'own.safetensors'}").model
    own = model.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in again.state_dict().items())


def test_average_and_bf16_learn_too_in_a_number_of_steps(recipe_file: Path) -> None:
    steps = ["train.epochs=null", "train.steps=40", "train.validate_steps=15"]
    trainer = start(recipe_file, "run", *steps, "train.ema=0.9", "train.precision=bf16")
    metrics = trainer.run()
    assert metrics["test_accuracy"] > 0.9 and metrics["steps"] == 40
    assert [row["step"] for row in trainer.state.history] == [15, 30, 40]
    best, last = (load_file(trainer.folder / name) for name in (records.BEST, records.LAST))
    assert all(value.dtype == torch.float32 for value in best.values())
    assert trainer.state.average is not None
    assert all(torch.equal(last[key], trainer.state.average.state[key]) for key in last)


def test_gradient_is_clipped_to_its_largest_norm(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    norms: list[float] = []
    clip = torch.nn.utils.clip_grad_norm_

    def watched(parameters: Iterable[torch.nn.Parameter], largest: float) -> torch.Tensor:
        kept = list(parameters)
        norm = clip(kept, largest)
        after = torch.cat([p.grad.flatten() for p in kept if p.grad is not None]).norm()
        norms.append(float(after))
        return norm

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", watched)
    start(recipe_file, "run", "train.epochs=1", "train.clip_norm=0.01").run()
    assert norms == pytest.approx([0.01] * 8, rel=1e-3)


def test_training_stops_when_validation_gets_no_better(recipe_file: Path) -> None:
    trainer = start(recipe_file, "run", "train.epochs=50", "train.patience=2")
    trainer.run()
    validations = len(trainer.state.history)
    assert validations < 50 and validations - trainer.state.best["validation"] == 2


def test_best_weights_may_be_those_of_the_lowest_loss(recipe_file: Path) -> None:
    trainer = start(recipe_file, "run", "train.epochs=4", "train.monitor=loss")
    metrics = trainer.run()
    assert metrics["valid_loss"] == min(row["valid_loss"] for row in trainer.state.history)


@pytest.mark.parametrize("method", ["pgd", "trades"])
def test_adversarial_recipe_records_accuracy_under_attack(recipe_file: Path, method: str) -> None:
    attack = f"adversarial={{eps: 8/255, alpha: 4/255, steps: 2, method: {method}}}"
    trainer = start(recipe_file, "run", attack, "train.epochs=2")
    metrics = trainer.run()
    assert metrics["test_attacked_accuracy"] <= metrics["test_accuracy"]
    assert records.recorded_recipe(trainer.folder).adversarial is not None


def test_other_trackers_take_the_same_figures_and_go_on_after_a_break(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow, wandb = Mock(), Mock()
    mlflow.start_run.return_value.info.run_id = "seven"
    run = wandb.init.return_value
    run.id = "eight"
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    trainer = start(recipe_file, "run", "logs=[mlflow, wandb]", "train.epochs=3")
    trainer.run()
    for log in (mlflow.log_metrics, run.log):
        assert [call.kwargs["step"] for call in log.call_args_list] == [8, 16, 20, 24]
    for once in (mlflow.log_params, mlflow.end_run, run.finish):
        once.assert_called_once()
    trainer.state.step = 23
    trainer.run()
    assert [call.kwargs.get("run_id") for call in mlflow.start_run.mock_calls] == [None, "seven"]
    assert [call.kwargs["id"] for call in wandb.init.call_args_list] == [None, "eight"]


def test_tracker_that_is_not_installed_is_named(
    recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="logs names wandb, which is not installed"):
        start(recipe_file, "run", "logs=[wandb]").run()


def test_run_starts_from_given_weights_and_goes_on_without_their_file(recipe_file: Path) -> None:
    with pytest.raises(ValueError, match="nothing is not a readable safetensors file"):
        start(recipe_file, "nowhere", "init=nothing")
    first = recipe_file.parent / "first.safetensors"
    save_weights(start(recipe_file, "nowhere", "seed=1").model, first)
    begun = start(recipe_file, "run", f"init={first}", "train.epochs=1")
    given, weights = load_file(first), begun.model.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in given.items())
    digest, metrics = hashlib.sha256(first.read_bytes()).hexdigest(), begun.run()
    first.unlink()
    run = begun.folder
    Trainer(records.recorded_recipe(run), run).run()  # a finished run is only tested again
    assert json.loads((run / records.METRICS).read_text()) == metrics
    recorded = json.loads((run / records.RUN).read_text())
    assert recorded["init_digest"] == digest and len(recorded["sessions"]) == 2


def test_loss_that_is_no_number_ends_the_run(
    recipe_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = ["train.lr=1.0e+30", "train.clip_norm=null", "train.warmup_epochs=0"]
    run = str(recipe_file.parent / "run")
    assert main(["fit", str(recipe_file), *overrides, "--output", run]) == 2
    assert "the loss is nan: a lower train.lr" in capsys.readouterr().err


@pytest.mark.parametrize("variant", ["transject", "transformer"])
def test_texts_are_learned_with_a_tokenizer_of_their_own(text_recipe: Path, variant: str) -> None:
    trainer = start(text_recipe, "run", f"variant={variant}")
    metrics = trainer.run()
    assert metrics["test_accuracy"] > 0.9
    assert "IMDb" in metrics["data"] and "a part, not the whole split" in metrics["data"]
    assert (trainer.folder / records.TOKENIZER).is_file()
    assert records.recorded_recipe(trainer.folder).name == f"words-{variant}"


def test_first_steps_see_the_beginnings_of_sequences_alone(
    token_recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    forward = Objective.forward
    monkeypatch.setattr(
        Objective,
        "forward",
        lambda self, inputs, *rest: (
            seen.append(inputs[0].shape[-1]),
            forward(self, inputs, *rest),
        )[1],
    )
    short = ["train.epochs=null", "train.steps=4", "train.short_steps=2", "train.short_len=5"]
    start(token_recipe, "run", *short).run()
    assert seen[:2] == [5, 5] and min(seen[2:]) > 5 and len(seen) == 4


def images(count: int = 40) -> StoredImages:
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (count, 1, 2, 2), dtype=np.uint8)
    return StoredImages(pixels, random.integers(0, 8, count))


@torch.no_grad()
def test_figures_are_those_of_one_pass_in_eval_mode_and_lower_under_attack() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(4, 8)).train()
    samples, task = images(), Classification(8)
    clean = evaluate(model, samples, task, Processes())
    logits = model.eval()(samples.pixels.float() / 255)
    labels = torch.from_numpy(samples.labels)
    best = logits.topk(5).indices == labels[:, None]
    assert clean == pytest.approx(
        {
            "accuracy": float(best[:, 0].float().mean()),
            "loss": float(F.cross_entropy(logits, labels)),
            "top5_accuracy": float(best.any(1).float().mean()),
        }
    )
    recipe = AdversarialRecipe(eps=0.2, alpha=0.1, steps=5)
    with torch.enable_grad():
        found = evaluate(model.train(), samples, task, Processes(), adversarial=recipe)
    assert found.pop("attacked_accuracy") < clean["accuracy"] and found == clean


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
    found = evaluate(model, Sequences(tokens), Classification(4), Processes())
    assert found["accuracy"] == 1
    assert all(batch * longest <= 64_000 for batch, longest in model.batches)
    assert sum(batch * longest for batch, longest in model.batches) < 1.3 * lengths.sum()
