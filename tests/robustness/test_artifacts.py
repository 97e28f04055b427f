"""The whole line on exported models: white box on the PyTorch model, scored as served."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.images import decode_image, to_input, to_png
from data.sources import load_inputs, open_images
from robustness.__main__ import main
from robustness.evaluation import evaluate
from robustness.report.schema import Report, read_report
from robustness.spec import EvaluationSpec
from robustness.store import whole
from runtimes.artifact import open_artifact
from runtimes.registry import open_runtime


@pytest.fixture(scope="module")
def report(artifacts: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, Path]:
    folder = tmp_path_factory.mktemp("evaluation")
    spec = EvaluationSpec.model_validate(
        {"attacks": [{"name": "pgd", "eps": ["6/255", "20/255"]}, {"name": "fgsm", "eps": [0.03]}]}
    )
    pair = [open_artifact(artifacts.elliptical), open_artifact(artifacts.dot)]
    images = open_images(artifacts.images, label_names=pair[0].labels)
    return evaluate(spec, pair, images, folder), folder


def test_flags_follow_from_the_stored_inputs_on_the_served_model(
    report: tuple[Report, Path], artifacts: Any
) -> None:
    """Recompute every confirmed flag here, with nothing but the stored files and the runtime."""
    found, folder = report
    figures = found.summary.models[0]
    artifact = open_artifact(artifacts.elliptical)
    runtime = open_runtime(artifact, threads=1)
    images = open_images(artifacts.images, label_names=artifact.labels)
    inputs, labels = load_inputs(images, artifact.image_spec), images.labels
    held = {kind: runtime.predict(inputs).argmax(1) == labels for kind in ("fp32", "8bit")}
    for variant in ("stopped", "full"):
        own = folder / "shards" / figures.digest[:16]
        paths = sorted(own.glob(f"pgd-Linf-20_255-{variant}-*"))
        adversarial = np.concatenate([whole(path)["adversarial"] for path in paths])
        assert np.abs(adversarial - inputs).max() <= 20 / 255 + 1e-6
        public = [to_input(decode_image(to_png(x)), artifact.image_spec) for x in adversarial]
        held["fp32"] &= runtime.predict(adversarial).argmax(1) == labels
        held["8bit"] &= runtime.predict(np.stack(public)).argmax(1) == labels
    flags = [s.models[0].attacks[1] for s in found.samples]
    assert [f.eps for f in flags] == ["20/255"] * 40
    assert [f.confirmed for f in flags] == held["fp32"].tolist()
    assert [f.confirmed_8bit for f in flags] == held["8bit"].tolist()
    assert figures.attacks[1].confirmed == held["fp32"].mean()
    assert 0 < figures.attacks[0].confirmed < figures.clean.top1


def test_elliptical_model_is_attacked_with_both_gradients_and_the_worst_counts(
    report: tuple[Report, Path],
) -> None:
    found, folder = report
    elliptical, dot = found.summary.models
    for attack in elliptical.attacks:
        assert attack.gradients is not None and set(attack.gradients) == {"stopped", "full"}
        assert attack.robust.top1 <= min(attack.gradients.values())
    assert all(attack.gradients is None for attack in dot.attacks)
    own = folder / "shards" / elliptical.digest[:16]
    stopped, full = (
        whole(own / f"fgsm-Linf-0.03-{v}-000000.safetensors") for v in ("stopped", "full")
    )
    assert (stopped["adversarial"] != full["adversarial"]).any()


def test_report_names_all_that_is_needed_to_repeat_it_and_has_no_warning(
    report: tuple[Report, Path], artifacts: Any
) -> None:
    found, folder = report
    assert read_report(folder) == found
    assert found.summary.warnings == []
    assert found.summary.models[0].digest == open_artifact(artifacts.elliptical).digest
    assert [a.eps_value for a in found.summary.models[0].attacks] == [6 / 255, 20 / 255, 0.03]
    assert found.environment["threads"] == "1"
    assert len(found.data.digest) == 64 and found.seed == 0
    text = (folder / "report.json").read_text()
    assert str(folder) not in text and str(artifacts.dot.parent) not in text


def arguments(artifacts: Any, *more: str) -> list[str]:
    return [
        "evaluate", "--artifact", str(artifacts.elliptical), "--data", str(artifacts.images),
        "--attack", "pgd", "--eps", "4/255", "20/255", *more,
    ]  # fmt: skip


def test_command_prints_the_figures_and_keeps_the_report(
    artifacts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--compare", str(artifacts.dot), "--limit", "12", "--output", str(tmp_path / "out")]
    more += ["--workers", "1"]
    assert main(arguments(artifacts, *more, "--steps", "3")) == 0
    printed = capsys.readouterr().out
    for word in ("accuracy on 12 images", "elliptical 1", "20/255", "95 % interval", "McNemar"):
        assert word in printed
    assert read_report(tmp_path / "out").data.samples == 12


def test_gate_decides_the_exit_code(artifacts: Any, capsys: pytest.CaptureFixture[str]) -> None:
    gate = ["--limit", "8", "--steps", "2", "--gate"]
    assert main(arguments(artifacts, *gate, "robust_accuracy>=0.999")) == 1
    assert "failed (" in capsys.readouterr().out
    assert main(arguments(artifacts, *gate, "clean_accuracy>=0.1")) == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--eps", "0/255"], "eps must"),
        (["--eps", "4/255"], "a radius twice"),
        (["--gate", "robust>=1"], "gate must"),
        (["--limit", "0"], "--limit must"),
        (["--steps", "0"], "greater than or equal to 1"),
        (["--seed", "-1"], "greater than or equal to 0"),
        (["--data", "nowhere"], "nowhere"),
        (["--artifact", "nowhere"], "nowhere"),
    ],
)
def test_bad_request_exits_with_2_and_says_why(
    more: list[str], message: str, artifacts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(artifacts, *more)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ") and message in captured.err


def test_steps_without_pgd_and_unknown_attacks_exit_with_2(
    artifacts: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fgsm" if word == "pgd" else word for word in arguments(artifacts, "--steps", "3")]
    assert main(words) == 2
    assert "--steps has a meaning for pgd" in capsys.readouterr().err
    with pytest.raises(SystemExit) as error:
        main(arguments(artifacts, "--attack", "magic"))
    assert error.value.code == 2


def test_command_line_puts_the_figures_on_the_card(artifacts: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(artifacts.elliptical, tmp_path / "scored"))
    digest = open_artifact(folder).digest
    command = ["evaluate", "--artifact", str(folder), "--data", str(artifacts.images), "--card"]
    assert main([*command, "--attack", "fgsm", "--eps", "20/255", "--limit", "12"]) == 0
    scored = open_artifact(folder)
    assert scored.digest == digest and scored.card is not None
    figures = scored.card["robustness"]
    assert figures["metric"] == "accuracy" and figures["data"] == "images"
    assert [attack["eps"] for attack in figures["attacks"]] == ["20/255"]
    assert "| fgsm | 20/255 |" in (folder / "card.md").read_text()
