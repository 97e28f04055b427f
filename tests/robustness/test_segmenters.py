"""Segmenters: what is right about an image, SegPGD, and evaluations from artifact to report."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from data.masks import open_masks
from data.sets import IGNORED, MaskSet
from data.sources import open_images
from robustness.__main__ import main
from robustness.attacks.base import Attack, Batch, Search
from robustness.attacks.pgd import FGSM, PGD, SegPGD, pgd
from robustness.evaluation import evaluate
from robustness.kinds import NotPossible
from robustness.report.exhibits import Pixels, collect
from robustness.report.schema import Report
from robustness.spec import ATTACKS, EvaluationSpec
from robustness.target import MaskTarget
from robustness.tasks import Segmentation, mean_iou
from runtimes.artifact import Artifact
from tests.robustness.conftest import ModuleRuntime, make_images, make_target

SIDE, LABELS = 6, ["dark", "light", "none"]
SPEC: dict[str, Any] = {
    "attacks": [
        {"name": "fgsm", "eps": ["4/255", "16/255"]},
        {"name": "pgd", "eps": ["16/255"], "steps": 20},
        {"name": "segpgd", "eps": ["4/255", "16/255"], "steps": 20},
    ]
}


class Threshold(nn.Module):
    """Calls a pixel light above 1/2, a little blurred: the best attack moves each towards 1/2."""

    def __init__(self, sharpness: float = 4.0) -> None:
        super().__init__()
        self.sharpness = nn.Parameter(torch.tensor(sharpness))

    def forward(self, images: Tensor) -> Tensor:
        x = self.sharpness * (images[:, 0] - 0.5)
        return torch.stack([-x, x, x.abs() - 9], dim=1)


def mask_target(model: nn.Module, name: str = "threshold") -> MaskTarget:
    plain = make_target(3)
    known = {key: getattr(plain, key) for key in ("version", "image_spec", "graph")}
    return MaskTarget(
        **known, name=name, digest=name.ljust(64, "0"), labels=LABELS,
        runtime=ModuleRuntime(model.eval()), torch_model=model,
    )  # fmt: skip


def scenes(count: int = 40, *, ignored: bool = True) -> MaskSet:
    """Gray noise around 1/2; the mask is right but where it is turned over or left out."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(96, 160, (count, SIDE, SIDE), dtype=np.uint8)
    masks = (pixels > 127).astype(np.uint8)
    masks[draw.random(masks.shape) < 0.1] = 2
    if ignored:
        masks[draw.random(masks.shape) < 0.2] = IGNORED
    images = make_images(count, num_classes=None)
    known = {key: getattr(images, key) for key in ("names", "labels", "origin", "reader")}
    return MaskSet(**known, label_names=LABELS, mask_reader=lambda i: masks[i])


def pixels_of(images: MaskSet) -> tuple[np.ndarray, np.ndarray]:
    target = mask_target(Threshold())
    truth = target.truth(images)
    assert truth is not None
    return np.asarray(target.load(images)), truth


def test_ranks_count_wrong_pixels_and_tables_give_the_iou_of_all_together() -> None:
    task, draw = Segmentation(), np.random.default_rng(0)
    logits = draw.normal(size=(5, 3, 4, 4)).astype(np.float32)
    labels = draw.choice([0, 1, 2, IGNORED], (5, 4, 4)).astype(np.int64)
    labels[4] = IGNORED
    predicted, counted = logits.argmax(1), labels != IGNORED
    wrong = [int((p != t)[c].sum()) for p, t, c in zip(predicted, labels, counted, strict=True)]
    rank = task.rank(logits, labels)
    assert rank.tolist() == wrong and task.rank(logits[:0], labels[:0]).shape == (0,)
    share = task.share(rank, labels)
    sizes = counted.sum((1, 2))
    assert share[:4].tolist() == pytest.approx((1 - rank / np.maximum(sizes, 1))[:4].tolist())
    assert sizes[4] == 0 and share[4] == 1
    iou = [
        ((predicted == k) & (labels == k)).sum()
        / (((predicted == k) & counted) | (labels == k)).sum()
        for k in range(3)
    ]
    tables = task.tables(logits, labels)
    assert tables.shape == (3, 3, 5) and mean_iou(tables.sum(-1)) == pytest.approx(np.mean(iou))
    assert np.isnan(mean_iou(np.zeros((3, 3))))
    logits[0, 0, 0, 0] = np.nan
    assert task.rank(logits, labels)[0] == counted[0].sum()
    assert task.margin(logits, labels)[0] == -np.inf and np.isnan(task.probability(logits)[0])
    assert task.index(np.eye(3)[[0, 1, 1, 2]].T.reshape(1, 3, 2, 2)).tolist() == [1]


def run(attack: Attack, target: MaskTarget, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    search = Search(seeds=list(range(len(images))), leave=False)
    return attack.run(
        target, Batch(inputs=images, labels=labels), attack.budgets()[0], search
    ).images


@pytest.mark.parametrize("kind", [FGSM, PGD, SegPGD])
def test_attacks_move_every_counted_pixel_towards_the_other_class(kind: type[Attack]) -> None:
    target, (images, labels) = mask_target(Threshold()), pixels_of(scenes())
    attack = kind.model_validate({"name": kind.model_fields["name"].default, "eps": ["8/255"]})
    made = run(attack, target, images, labels)
    change = (made - images)[:, 0]
    assert np.abs(change).max() <= 8 / 255 + 1e-6 and made.min() >= 0 and made.max() <= 1
    dark, light = labels == 0, labels == 1
    if kind is FGSM:  # starts at the image: what counts nowhere stays
        assert (change[labels == IGNORED] == 0).all()
    assert np.allclose(change[dark], 8 / 255) and np.allclose(change[light], -8 / 255)
    near = np.abs(images[:, 0] - 0.5) < 8 / 255
    fallen = target.predict(made).argmax(1) != labels
    assert np.array_equal(fallen[dark | light], near[dark | light])


def reference(
    model: nn.Module, images: Tensor, labels: Tensor, eps: float, alpha: float, steps: int
) -> Tensor:
    """SegPGD without a random start, as its paper writes it: algorithm 1, lambda = (t - 1) / 2T."""
    x = images.clone()
    for t in range(1, steps + 1):
        x.requires_grad_(True)
        logits = model(x)
        each = F.cross_entropy(logits, labels, reduction="none", ignore_index=IGNORED)
        wrong, share = logits.argmax(1) != labels, (t - 1) / (2 * steps)
        loss = (1 - share) * each[~wrong].sum() + share * each[wrong].sum()
        (gradient,) = torch.autograd.grad(loss, x)
        x = (x + alpha * gradient.sign()).detach()
        x = (images + (x - images).clamp(-eps, eps)).clamp(0, 1)
    return x


def test_segpgd_is_the_algorithm_of_its_paper() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 3, 3, padding=1))
    images = torch.rand(6, 1, SIDE, SIDE)
    labels = torch.randint(0, 3, (6, SIDE, SIDE))
    labels[:, 0] = IGNORED
    attack = SegPGD(eps=["0.1"], steps=6)
    options: dict[str, Any] = {"eps": 0.1, "alpha": 0.03, "steps": 6, "rng": None, "leave": False}
    found = pgd(model, images, labels, losses=attack.losses, **options)
    expected = reference(model, images, labels, 0.1, 0.03, 6)
    assert torch.equal(found, expected)
    assert not torch.equal(found, pgd(model, images, labels, **options))


def spec_of(**changes: Any) -> EvaluationSpec:
    return EvaluationSpec.model_validate(SPEC | changes)


def test_report_holds_pixel_accuracy_and_iou_before_and_under_attack(tmp_path: Path) -> None:
    target, images = mask_target(Threshold()), scenes(70)
    report = evaluate(spec_of(gate="robust_pixel_accuracy >= 0.2"), [target], images, tmp_path)
    pixels, labels = pixels_of(images)
    counted = labels != IGNORED
    right = (target.predict(pixels).argmax(1) == labels) & counted
    held = right & (np.abs(pixels[:, 0] - 0.5) >= 16 / 255)
    shares = right.sum((1, 2)) / counted.sum((1, 2)), held.sum((1, 2)) / counted.sum((1, 2))
    model, summary = report.summary.models[0], report.summary
    assert summary.metric == "pixel accuracy" and summary.reliable, summary.warnings
    assert model.clean.top1 == pytest.approx(shares[0].mean())
    low, high = model.clean.ci
    assert low < model.clean.top1 < high and high - low < 0.1
    assert model.largest is not None and model.largest.top1 == pytest.approx(shares[1].mean())
    for attack in model.attacks:
        if attack.eps == "16/255":
            assert attack.robust.top1 == pytest.approx(shares[1].mean())
            assert attack.confirmed == pytest.approx(attack.robust.top1)
            assert attack.confirmed_8bit == pytest.approx(attack.robust.top1, abs=0.03)
            assert attack.confirmed_mean_iou == attack.robust.mean_iou
            assert attack.successes == attack.served_successes > 60
    assert model.clean.mean_iou is not None and model.largest.mean_iou is not None
    assert 1 > model.clean.mean_iou > model.largest.mean_iou > 0
    assert model.largest.mean_iou_ci is not None
    assert summary.gate is not None and summary.gate.passed
    assert summary.gate.value == model.largest.ci[0]
    assert {one.index for one in model.classes} == {0, 1, 2}
    flags = report.samples[3].models[0]
    assert flags.clean.pixel_accuracy == pytest.approx(shares[0][3])
    worst = [one.robust_pixel_accuracy for one in flags.attacks if one.eps == "16/255"]
    assert worst == pytest.approx([shares[1][3]] * 3) and report.samples[3].label is None
    assert "of the pixels of 70 images" in summary.headline
    assert not any("Autoattack" in note for note in report.notes)
    assert "pixels of an image" in report.definitions["clean"] and "mean_iou" in report.definitions


def test_the_report_shows_what_an_attack_did_to_the_classes_of_pixels(tmp_path: Path) -> None:
    target, images = mask_target(Threshold()), scenes(40)
    report = evaluate(spec_of(), [target], images, tmp_path)
    masks = target.truth(images)
    assert masks is not None
    shown, _ = collect(tmp_path, report, target.torch_model, masks)
    losses = []
    for one, views in shown:
        assert isinstance(views, Pixels) and one.clean.pixel_accuracy is not None
        mask, before, after = views.classes
        counted = mask != IGNORED
        assert np.array_equal(mask, masks[one.sample.index])
        assert (before == mask)[counted].mean() == pytest.approx(one.clean.pixel_accuracy)
        right = (after == mask)[counted].mean()
        assert right == pytest.approx(one.attack.confirmed_pixel_accuracy)
        losses.append(one.clean.pixel_accuracy - right)
        assert all(picture.shape == (3, *mask.shape) for picture in views.class_maps)
        assert (views.class_maps[0][:, ~counted] == 1).all()
    assert len(shown) == 15 and min(losses[:12]) > max(losses[12:])


def test_two_segmenters_are_compared_image_by_image(tmp_path: Path) -> None:
    class Shifted(Threshold):
        """Takes more pixels for dark."""

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images - 0.02)

    models = [mask_target(Threshold()), mask_target(Shifted(), "shifted")]
    report = evaluate(spec_of(), models, scenes(50), tmp_path)
    other = report.summary.comparison
    assert other is not None and other.largest is not None
    pair, figures = other.clean, [model.clean.top1 for model in report.summary.models]
    assert (pair.first, pair.second) == pytest.approx(figures)
    assert pair.difference == pytest.approx(figures[0] - figures[1])
    assert pair.ci[0] < pair.difference < pair.ci[1] and pair.ci[0] > 0
    assert pair.only_first + pair.only_second + pair.both == 50 and pair.p_value < 1e-3
    assert "sign test over images" in other.finding


def test_the_gate_can_stop_early(tmp_path: Path) -> None:
    spec = spec_of(gate="robust_pixel_accuracy >= 0.05", stop="early")
    report = evaluate(spec, [mask_target(Threshold())], scenes(400), tmp_path)
    assert report.data.samples < 400 and report.summary.gate is not None
    assert report.summary.gate.passed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attacks": [{"name": "apgd-ce", "eps": ["1/255"]}]},
         "'apgd-ce' changes the class of a whole input, and 'thresh.*: use fgsm, pgd or segpgd"),
        ({"attacks": [{"name": "corruptions", "names": ["fog"]}]}, "'corruptions' changes the"),
        ({"gate": "robust_accuracy >= 0.1"}, "gate must compare robust_pixel_accuracy or clean"),
        ({"top_k": [1, 2]}, "top_k must be 1"),
        ({"class_map": "index"}, "class_map be left out"),
        ({"attacks": [{"name": "pgd", "eps": ["1/255"], "space": "normalised"}]}, "space must"),
    ],
)  # fmt: skip
def test_what_says_nothing_about_pixels_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(NotPossible, match=message):
        evaluate(spec_of(**changes), [mask_target(Threshold())], scenes(4), tmp_path)


def test_classifiers_and_segmenters_need_inputs_of_their_own(tmp_path: Path) -> None:
    fgsm = EvaluationSpec.model_validate({"attacks": [{"name": "fgsm", "eps": ["1/255"]}]})
    classifier, segmenter = make_target(3), mask_target(Threshold())
    for spec, models, inputs, message in (
        (fgsm, [classifier], scenes(4), "classes of whole images for 'linear', got masks"),
        (fgsm, [segmenter], make_images(4), "must have masks for 'threshold', got no masks"),
        (spec_of(), [classifier], make_images(4), "'segpgd' weighs the pixels of a segmenter"),
        (fgsm, [replace(classifier, labels=LABELS), segmenter], make_images(4), "must answer as"),
    ):
        with pytest.raises(NotPossible, match=message):
            evaluate(spec, models, inputs, tmp_path)


def faulty(report: Report) -> list[str]:
    return [warning.code for warning in report.summary.warnings]


def test_a_segmenter_that_looks_at_its_batch_or_at_nothing_is_noticed(tmp_path: Path) -> None:
    class OfBatch(Threshold):
        """Another answer in another batch."""

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images - images.mean() + 0.5)

    class Blank(Threshold):
        """The same answer whatever is asked."""

        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images * 0 + 0.3)

    for name, model, code in (
        ("batch", OfBatch(), "depends_on_batch"),
        ("blank", Blank(), "constant_output"),
    ):
        report = evaluate(spec_of(), [mask_target(model, name)], scenes(40), tmp_path / name)
        assert code in faulty(report)


def names(attacks: Sequence[str]) -> list[str]:
    return [word for attack in attacks for word in ("--attack", attack)]


@pytest.mark.usefixtures("in_process")
def test_artifact_is_evaluated_verified_and_gated_from_the_command_line(
    mask_artifact: Artifact, masks_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = str(mask_artifact.folder), str(masks_folder)
    options = ["--artifact", folder, "--data", data, "--eps", "4/255", "--output", str(tmp_path)]
    attacks = names(["fgsm", "pgd:steps=3", "segpgd:steps=3"])
    gate = ["--gate", "robust_pixel_accuracy >= 0.9"]
    assert main(["evaluate", *options, *attacks, *gate]) == 1
    told = capsys.readouterr().out
    assert "pixel accuracy on 12 images" in told and "mIoU" in told and "Gate robust_pixel" in told
    report = json.loads((tmp_path / "report.json").read_text())
    [model] = report["summary"]["models"]
    assert report["summary"]["warnings"] == []
    assert model["attacks"][2]["name"] == "segpgd" and model["attacks"][2]["gradients"]
    page = (tmp_path / "report.html").read_text()
    assert "Pixels classified correctly" in page and "lost most of their right pixels" in page
    for title in ("mask", "prediction before", "prediction after"):
        assert page.count(f'<span class="frame-title">{title}</span>') == 12
    assert "mIoU" in (tmp_path / "card.md").read_text()
    assert main(["verify", str(tmp_path), "--artifact", folder, "--data", data]) == 0
    changed = json.dumps(report).replace(f'"top1": {model["clean"]["top1"]}', '"top1": 0.99')
    (tmp_path / "report.json").write_text(changed)
    assert main(["verify", str(tmp_path), "--artifact", folder]) == 1
    assert main(["evaluate", *options, "--attack", "square"]) == 2
    assert "use fgsm, pgd or segpgd" in capsys.readouterr().err


def test_only_three_attacks_answer_for_pixels(masks_folder: Path) -> None:
    pixels = [name for name, kind in ATTACKS.items() if "pixels" in kind.info.answers]
    assert pixels == ["fgsm", "pgd", "segpgd"]  # as `OF_ANSWERS` tells
    assert ATTACKS["segpgd"].info.answers == ("pixels",)
    assert len(open_masks(masks_folder, label_names=LABELS)) == 12
    assert open_images is not open_masks
