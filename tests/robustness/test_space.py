"""Attacks on the normalized tensor: what they do there, and what their figures are kept out of."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.nn.functional import cross_entropy

import models
from data.sources import open_images
from robustness.attacks.base import Attack, Batch, Search
from robustness.attacks.space import REPLICATION, is_replication
from robustness.evaluation import evaluate
from robustness.kinds import NotPossible
from robustness.spec import ATTACKS, EvaluationSpec
from robustness.target import ImageTarget, normalized
from robustness.verify import verify
from runtimes.artifact import open_artifact
from tests.robustness.conftest import image_target, make_target

EPS = 0.1


def target_of(mean: float, std: float) -> ImageTarget:
    """A tiny vision transformer that normalizes its pixels."""
    sizes: Any = {"embed_dim": 16, "num_heads": 2, "depth": 2, "mlp_ratio": 2.0, "patch_size": 4}
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(
            "deit_tiny", img_size=8, in_chans=1, num_classes=4, mean=(mean,), std=(std,), **sizes
        )
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return image_target(model.eval(), 4)


def batch_of(target: ImageTarget, low: float = 0.0, high: float = 1.0) -> Batch:
    images = np.random.default_rng(0).uniform(low, high, (6, 1, 8, 8)).astype(np.float32)
    return Batch(inputs=images, labels=target.predict(images).argmax(1))


def run(name: str, target: ImageTarget, batch: Batch, **options: Any) -> tuple[Attack, list[Batch]]:
    """The attack, and what each of its parts makes of the batch."""
    attack = ATTACKS[name].model_validate({"name": name, "eps": [str(EPS)], **options})
    search, found = Search(seeds=range(6), leave=False), list[Batch]()
    for part in attack.parts(4):
        known, [budget] = type(part).model_fields, part.budgets()
        quick = {key: value for key, value in {"steps": 3, "queries": 5}.items() if key in known}
        found.append(part.model_copy(update=quick).run(target, batch, budget, search))
        assert part.allowed(batch, found[-1], budget, target, range(6)).all()
    return attack, found


def test_fgsm_is_one_step_of_the_normalized_tensor_without_any_clipping() -> None:
    target = target_of(0.3, 0.25)
    batch = batch_of(target)
    mean, std = 0.3, 0.25
    tensor = torch.from_numpy((batch.images - mean) / std).requires_grad_()
    model: Any = target.torch_model
    loss = cross_entropy(model(tensor * std + mean), torch.from_numpy(batch.labels))
    [gradient] = torch.autograd.grad(loss, tensor)
    expected = ((tensor + EPS * gradient.sign()) * std + mean).detach().numpy()
    _, [made] = run("fgsm", target, batch, space="normalised")
    clear = np.abs(gradient.numpy()) > 1e-6
    np.testing.assert_allclose(made.images[clear], expected[clear], atol=1e-6)
    assert made.images.min() < 0 and made.images.max() > 1


@pytest.mark.parametrize("name", ["fgsm", "pgd"])
def test_without_a_normalization_and_away_from_the_ends_both_spaces_are_one(name: str) -> None:
    target = target_of(0.0, 1.0)
    batch = batch_of(target, 0.3, 0.7)
    _, [pixels] = run(name, target, batch)
    _, [tensor] = run(name, target, batch, space="normalised")
    np.testing.assert_allclose(tensor.images, pixels.images, atol=1e-6)
    assert (pixels.images != batch.images).any()


def test_autoattack_clips_the_normalized_tensor_to_the_box_of_pixels() -> None:
    target = target_of(0.3, 0.25)
    batch = batch_of(target)
    attack, parts = run("autoattack", target, batch, space="normalised")
    labels = [part.label for part in attack.parts(4)]
    assert labels == [f"{n}:normalised" for n in ("apgd-ce", "apgd-t", "fab-t", "square")]
    clean, *made = (normalized(target).from_pixels(one.images) for one in (batch, *parts))
    for tensor in made:
        moved = np.abs(tensor - clean.clip(0, 1)) <= EPS + 1e-4
        assert (moved | (tensor == clean)).all()
    # Clipping alone changes pixels by more than eps; FAB-T found nothing, and left them.
    assert [bool((np.abs(one - clean) > 2 * EPS).any()) for one in made] == [
        True,
        True,
        False,
        True,
    ]


def test_what_goes_too_far_is_not_allowed() -> None:
    target = target_of(0.3, 0.25)
    batch = batch_of(target)
    attack, _ = run("fgsm", target, batch, space="normalised")
    [budget] = attack.budgets()
    for change in (0.3 * EPS, np.nan):  # of pixels; the step was 0.25 eps
        far = Batch(inputs=batch.images + np.float32(change), labels=batch.labels)
        assert not attack.allowed(batch, far, budget, target, range(6)).any()
    assert budget.kind == "normalised"  # which no proof is about


def test_a_replication_is_marked_and_enters_neither_worst_case_nor_gate(
    artifacts: Path, tmp_path: Path
) -> None:
    model = open_artifact(artifacts / "elliptical")
    images = open_images(artifacts / "images", label_names=model.labels).take(range(4))
    own = [{"name": name, "eps": ["0.3"], "space": "normalised"} for name in ("fgsm", "pgd")]
    spec = {"attacks": [*own, {"name": "pgd", "eps": ["1/255"]}], "gate": "robust_accuracy >= 0"}
    report = evaluate(EvaluationSpec.model_validate(spec), [model], images, tmp_path / "both")
    [found] = report.summary.models
    assert list(found.worst) == ["1/255"]
    assert [is_replication(one.name) for one in found.attacks] == [True, True, False]
    for one in found.attacks[:2]:
        assert REPLICATION in one.title and REPLICATION in one.finding
        assert one.confirmed_8bit is None and one.norm is None
    assert sum(REPLICATION in note for note in report.notes) == 2
    assert report.summary.gate is not None and report.summary.gate.passed
    assert verify(tmp_path / "both", folders=[artifacts]).confirmed
    alone = EvaluationSpec.model_validate(spec | {"attacks": own})
    report = evaluate(alone, [model], images, tmp_path / "alone")
    assert not report.summary.models[0].worst and report.summary.models[0].largest is None
    assert report.summary.gate is not None and not report.summary.gate.passed


def test_what_cannot_be_replicated_is_refused() -> None:
    with pytest.raises(ValidationError, match="where norm is not Linf"):
        ATTACKS["autoattack"].model_validate({"eps": ["1"], "norm": "L2", "space": "normalised"})
    with pytest.raises(NotPossible, match="does not say how it normalizes"):
        normalized(make_target(2))
