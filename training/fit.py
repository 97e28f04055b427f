"""Train one recipe: epochs, checkpoints, early stopping and the final test."""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

import models
from data.sources import load_pixels, open_images
from data.splits import split_indices
from models.checkpoints import load_weights, save_weights
from training import records
from training.adversarial import pgd
from training.augment import augment
from training.distillation import ConvTeacher, distillation_loss, soft_labels, train_teacher
from training.recipe import AdversarialRecipe, Recipe

ATTACKED_VALIDATION = 1000
"""Validation images that an adversarial recipe attacks after each epoch."""
Split = tuple[Tensor, Tensor]


class Trainer:
    """One training run; every draw depends on the seed and the epoch alone, so it can resume.

    Args:
        recipe: what to train.
        folder: the run's folder, made by `records.start_run`.
    """

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe = recipe
        self.folder = folder
        torch.manual_seed(recipe.seed)
        self.model = models.build(**recipe.model)
        if recipe.init:
            load_weights(self.model, Path(recipe.init))
        self.train, self.valid, self.test, self.data_digest = _load(recipe)
        self.optimizer = _optimizer(self.model, recipe)
        self.steps_per_epoch = len(self.train[1]) // recipe.train.batch_size
        if not self.steps_per_epoch:
            raise ValueError(
                f"train.batch_size must be at most the {len(self.train[1])} training images, "
                f"got {recipe.train.batch_size}"
            )
        self._teacher_logits: Tensor | None = None
        self.history: list[dict[str, float]] = []
        self.best = {"score": -1.0, "epoch": 0.0}
        self._resume()

    @property
    def epoch(self) -> int:
        """Epochs done."""
        return len(self.history)

    @property
    def finished(self) -> bool:
        """All epochs done, or no better score for `patience` epochs."""
        waited = self.epoch - self.best["epoch"]
        return self.epoch >= self.recipe.train.epochs or waited >= self.recipe.train.patience

    def run(self, *, progress: bool = True) -> dict[str, Any]:
        """Train until finished, then test the best weights.

        Args:
            progress: show a progress bar.

        Returns:
            The metrics, as written to the run's folder.
        """
        while not self.finished:
            start = time.monotonic()
            loss = self._train_epoch(progress)
            self._end_epoch(loss, time.monotonic() - start)
            self._checkpoint()
            if progress:
                figures = (f"{key} {value:.4g}" for key, value in self.history[-1].items())
                tqdm.write("  ".join(figures), file=sys.stderr)
        load_weights(self.model, self.folder / records.BEST)
        metrics = self._metrics() | {"test_accuracy": accuracy(self.model, self.test)}
        if self.recipe.adversarial:
            attacked = self.test[0][:ATTACKED_VALIDATION], self.test[1][:ATTACKED_VALIDATION]
            metrics["test_attacked_accuracy"] = accuracy(
                self.model, attacked, self.recipe.adversarial
            )
        records.write_metrics(self.folder, metrics, self.history)
        return metrics

    def _train_epoch(self, progress: bool) -> float:
        self.model.train()
        recipe, total = self.recipe, 0.0
        generator = torch.Generator().manual_seed(recipe.seed * 100_003 + self.epoch)
        batches = _batches(self._training_data(progress), recipe.train.batch_size, generator)
        bar = tqdm(
            batches,
            total=self.steps_per_epoch,
            desc=f"epoch {self.epoch + 1}/{recipe.train.epochs}",
            unit="step",
            disable=not progress,
        )
        for step, (images, labels, *teacher) in enumerate(bar):
            images = augment(
                images, flip=recipe.data.flip, shift=recipe.data.shift, generator=generator
            )
            if recipe.adversarial:
                attack = asdict(recipe.adversarial)
                images = pgd(self.model, images, labels, generator=generator, **attack)
            self._set_learning_rate(self.epoch + step / self.steps_per_epoch)
            total += self._step(images, labels, *teacher)
            bar.set_postfix(loss=f"{total / (step + 1):.3f}", refresh=False)
        return total / self.steps_per_epoch

    def _set_learning_rate(self, epoch: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(self.recipe, epoch)

    def _step(self, images: Tensor, labels: Tensor, teacher: Tensor | None = None) -> float:
        logits = self.model(images)
        loss = F.cross_entropy(logits, labels)
        if teacher is not None and (recipe := self.recipe.distillation):
            opinion = distillation_loss(logits, teacher, temperature=recipe.temperature)
            loss = (1 - recipe.weight) * loss + recipe.weight * opinion
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.train.clip_norm)
        self.optimizer.step()
        return loss.item()

    def _training_data(self, progress: bool) -> tuple[Tensor, ...]:
        """Images and labels, and the teacher's logits once the student hears it."""
        recipe = self.recipe.distillation
        if recipe is None or self.epoch < recipe.start:
            return self.train
        if self._teacher_logits is None:
            pixels, labels = self.train
            torch.manual_seed(self.recipe.seed)
            teacher = ConvTeacher(pixels.shape[1], self.recipe.model["num_classes"])
            path = self.folder / records.TEACHER
            if path.exists():
                load_weights(teacher, path)
            else:
                train_teacher(
                    teacher,
                    pixels,
                    labels,
                    epochs=recipe.teacher_epochs,
                    seed=self.recipe.seed,
                    progress=progress,
                )
                save_weights(teacher, path)
            self._teacher_logits = soft_labels(teacher, pixels)
        return *self.train, self._teacher_logits

    def _end_epoch(self, loss: float, seconds: float) -> None:
        row = {"epoch": self.epoch + 1.0, "loss": loss, "seconds": seconds}
        row["valid_accuracy"] = score = accuracy(self.model, self.valid)
        if self.recipe.adversarial:
            attacked = self.valid[0][:ATTACKED_VALIDATION], self.valid[1][:ATTACKED_VALIDATION]
            score = accuracy(self.model, attacked, self.recipe.adversarial)
            row["valid_attacked_accuracy"] = score
        self.history.append(row)
        if score > self.best["score"]:
            self.best = {"score": score, "epoch": row["epoch"]}
            save_weights(self.model, self.folder / records.BEST)

    def _checkpoint(self) -> None:
        save_weights(self.model, self.folder / records.LAST)
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": self.history,
            "best": self.best,
            "data_digest": self.data_digest,
        }
        records.save_state(self.folder, state)
        records.write_metrics(self.folder, self._metrics(), self.history)

    def _resume(self) -> None:
        state = records.load_state(self.folder)
        if state is None:
            return
        if state["data_digest"] != self.data_digest:
            raise ValueError("the data is not what this run was started with")
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history, self.best = state["history"], state["best"]

    def _metrics(self) -> dict[str, Any]:
        best = self.history[int(self.best["epoch"]) - 1]
        return {
            "epochs": self.epoch,
            "best_epoch": int(self.best["epoch"]),
            "seconds": round(sum(row["seconds"] for row in self.history), 1),
            **{key: value for key, value in best.items() if key.startswith("valid")},
            "train_images": len(self.train[1]),
            "valid_images": len(self.valid[1]),
            "test_images": len(self.test[1]),
            "data_digest": self.data_digest,
            "environment": records.environment(),
        }


def learning_rate(recipe: Recipe, epoch: float) -> float:
    """Linear warm-up, then half a cosine to zero, once more after each restart.

    Args:
        recipe: its section `train` holds the peak and the epochs.
        epoch: position in the run, in fractions of epochs.
    """
    train = recipe.train
    cycle = sum(epoch >= restart for restart in train.restarts)
    bounds = (0, *train.restarts, train.epochs)
    length, epoch = bounds[cycle + 1] - bounds[cycle], epoch - bounds[cycle]
    warmup = 0.0 if cycle else train.warmup_epochs
    peak = train.lr * train.restart_decay**cycle
    if epoch < warmup:
        return peak * (epoch + 1 / length) / (warmup + 1 / length)
    done = (epoch - warmup) / max(length - warmup, 1e-9)
    return peak * 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))


def accuracy(model: nn.Module, split: Split, attack: AdversarialRecipe | None = None) -> float:
    """Fraction classified correctly, clean or on PGD's images (its seed is fixed).

    Args:
        model: the classifier; it is put in eval mode.
        split: (N, C, H, W) uint8 images and (N,) labels.
        attack: the attack, or None for clean images.
    """
    model.eval()
    correct = 0
    generator = torch.Generator().manual_seed(0)
    for pixels, labels in zip(split[0].split(500), split[1].split(500), strict=True):
        images = pixels.float() / 255
        if attack:
            images = pgd(model, images, labels, generator=generator, **asdict(attack))
        with torch.inference_mode():
            correct += int((model(images).argmax(1) == labels).sum())
    return correct / len(split[1])


def _load(recipe: Recipe) -> tuple[Split, Split, Split, str]:
    pixels: dict[str, np.ndarray] = {}
    labels: dict[str, np.ndarray] = {}
    for split in ("train", "test"):
        images = open_images(recipe.data.source, split=split, label_names=recipe.labels)
        if images.labels is None:
            raise ValueError(f"the {split} split of {recipe.data.source} has no labels")
        pixels[split], labels[split] = load_pixels(images, recipe.data.image), images.labels
    chosen, held_out = split_indices(len(labels["train"]), recipe.data.valid, recipe.seed)

    def pair(split: str, indices: np.ndarray | slice) -> Split:
        return torch.from_numpy(pixels[split][indices]), torch.from_numpy(labels[split][indices])

    everything = records.digest(pixels["train"], labels["train"], pixels["test"], labels["test"])
    test = pair("test", slice(None))
    return pair("train", chosen), pair("train", held_out), test, everything


def _optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1 and p.shape[0] > 1]
    others = [p for p in model.parameters() if not (p.ndim > 1 and p.shape[0] > 1)]
    groups = [
        {"params": matrices, "weight_decay": recipe.train.weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.train.lr, fused=True)


def _batches(
    tensors: tuple[Tensor, ...], batch_size: int, generator: torch.Generator
) -> Iterator[tuple[Tensor, ...]]:
    """Whole batches in a new order; the first tensor's pixels become numbers in [0, 1]."""
    pixels, *others = tensors
    order = torch.randperm(len(pixels), generator=generator)
    for indices in order.split(batch_size):
        if len(indices) == batch_size:
            yield pixels[indices].float() / 255, *(tensor[indices] for tensor in others)
