"""The command on exported models: white box on the PyTorch model, scored as served."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.images import decode_image, to_input, to_png
from data.sources import load_inputs, open_images
from robustness.__main__ import _executor, main
from robustness.arguments import read_spec
from robustness.attacks.base import options
from robustness.executors import ProcessExecutor, RayExecutor
from robustness.options import _shown, parser
from robustness.report.schema import Report, read_report
from robustness.spec import ATTACKS
from robustness.store import whole
from runtimes.artifact import open_artifact
from runtimes.registry import open_runtime
from tests.conftest import Once

SPEC = {
    "attacks": [{"name": "pgd", "eps": ["6/255", "20/255"]}, {"name": "fgsm", "eps": [0.03]}],
    "gate": "robust_accuracy>=0.999",
}


def arguments(artifacts: Path, *more: str, attack: str = "pgd") -> list[str]:
    return [
        "evaluate", "--artifact", f"{artifacts}/elliptical", "--data", f"{artifacts}/images",
        "--attack", attack, "--eps", "4/255", "20/255", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def report(artifacts: Path, once: Once) -> tuple[Report, Path]:
    def fill(folder: Path) -> None:
        (folder / "spec.json").write_text(json.dumps(SPEC))
        sources = ["--compare", str(artifacts / "dot"), "--output", str(folder), "--workers", "1"]
        command = [*arguments(artifacts)[:5], *sources, "--spec", str(folder / "spec.json")]
        assert main(command) == 1  # the gate

    folder = once("evaluated", fill)
    return read_report(folder), folder


def test_flags_follow_from_the_stored_inputs_on_the_served_model(
    report: tuple[Report, Path], artifacts: Path
) -> None:
    """Recompute every confirmed flag here, with nothing but the stored files and the runtime."""
    found, folder = report
    figures = found.summary.models[0]
    artifact = open_artifact(artifacts / "elliptical")
    runtime = open_runtime(artifact, threads=1)
    images = open_images(artifacts / "images", label_names=artifact.labels)
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


def test_elliptical_result_is_the_worst_of_both_gradients(report: tuple[Report, Path]) -> None:
    found, folder = report
    elliptical, dot = found.summary.models
    for attack in elliptical.attacks:
        assert attack.gradients is not None and set(attack.gradients) == {"stopped", "full"}
        assert attack.robust.top1 <= min(attack.gradients.values())
    assert all(attack.gradients is None for attack in dot.attacks)
    shards = folder / "shards" / elliptical.digest[:16]
    stopped, full = (
        whole(shards / f"fgsm-Linf-0.03-{v}-000000.safetensors") for v in ("stopped", "full")
    )
    assert (stopped["adversarial"] != full["adversarial"]).any()


def test_report_names_all_that_is_needed_to_repeat_it_and_has_no_warning(
    report: tuple[Report, Path], artifacts: Path
) -> None:
    found, folder = report
    assert found.summary.warnings == []
    assert found.summary.models[0].digest == open_artifact(artifacts / "elliptical").digest
    assert [a.eps_value for a in found.summary.models[0].attacks] == [6 / 255, 20 / 255, 0.03]
    assert found.environment["threads"] == "1"
    assert len(found.data.digest) == 64 and found.seed == 0
    text = (folder / "report.json").read_text()
    assert str(folder) not in text and str(artifacts) not in text


@pytest.mark.usefixtures("in_process")
def test_command_prints_the_figures_and_puts_them_on_the_card(
    artifacts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "scored"
    shutil.copytree(artifacts / "elliptical", folder)
    digest = open_artifact(folder).digest
    output = ["--card", "--gate", "clean_accuracy>=0.1", "--output", str(tmp_path / "out")]
    more = ["--limit", "12", "--artifact", str(folder)]
    assert main(arguments(artifacts, *more, *output, "--steps", "3")) == 0
    printed = capsys.readouterr().out
    for word in ("accuracy on 12 images", "elliptical 1", "20/255", "95 % interval", "held ("):
        assert word in printed
    assert read_report(tmp_path / "out").data.samples == 12
    scored = open_artifact(folder)
    assert scored.digest == digest and scored.card is not None
    figures = scored.card["robustness"]
    assert figures["metric"] == "accuracy" and figures["data"] == "images"
    assert [attack["eps"] for attack in figures["attacks"]] == ["4/255", "20/255"]
    assert "| pgd | 20/255 |" in (folder / "card.md").read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--eps", "0/255"], "eps must"),
        (["--limit", "0"], "--limit must"),
        (["--samples", "3"], "--samples has a meaning for spsa"),
        (["--data", "nowhere"], "nowhere"),
        (["--artifact", "nowhere"], "nowhere"),
        (
            ["--artifact", "artifacts"],
            "artifacts is not an artifact: manifest.json is missing; "
            "name one of the artifacts in it: artifacts/fashion-dot, artifacts/fashion-elliptical,",
        ),
        (
            ["--compare", "artifacts/imdb-transject"],
            "--compare must name a model that reads images,"
            " as 'elliptical' does; 'imdb-transject' reads texts",
        ),
        (["--data", "imdb"], "imdb is a set of texts, and images are needed"),
        (["--threads", "2000"], "--threads must be at most 1024, got 2000"),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["--deadline", "nan"], "--deadline must be above 0, got nan"),
        (["--spec", "spec.json"], "--spec stands for all of its options; leave out --attack"),
    ],
)
def test_bad_request_exits_with_2_and_says_why(
    more: list[str],
    message: str,
    artifacts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = ["--output", str(tmp_path / "out")]
    assert main(arguments(artifacts, *output, *more)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and not (tmp_path / "out").exists()
    assert captured.err.startswith("error: ") and message in captured.err


def test_a_table_of_words_is_read_from_a_file_into_the_spec(tmp_path: Path) -> None:
    command = ["evaluate", "--data", "imdb", "--attack", "synonyms", "worst-words", "--edits", "2"]
    for content in ('{"film": ["movie", "motion picture"]}', "film\tmovie\tmotion picture\n\n"):
        (tmp_path / "words").write_text(content)
        asked = parser().parse_args([*command, "--table", str(tmp_path / "words")])
        tables = [attack.model_dump()["table"] for attack in read_spec(asked).attacks]
        assert tables == [{"film": ["movie", "motion picture"]}] * 2
    (tmp_path / "words").write_text("film\tmovie\nfilm\tpicture")
    with pytest.raises(ValueError, match="name a word once, got 'film' twice"):
        read_spec(asked)


@pytest.fixture
def data(artifacts: Path, tmp_path: Path) -> Path:
    """Image sets: of classes with other names, and indices in files that name no class."""
    images, order = artifacts / "images", ["Cat", "dog", "FOX"]
    for index, name in enumerate(order):
        shutil.copytree(images / f"Class-{index}", tmp_path / "animals" / name)
    found = open_images(images, label_names=["class 0", "class 1", "class 2"])
    assert found.labels is not None
    contents = [to_png(np.asarray(found.read(i))[None] / 255) for i in range(len(found))]
    for name, shift in (("right", 0), ("wrong", np.arange(len(found)))):
        labels = (found.labels + shift) % 3
        pq.write_table(pa.table({"image": contents, "label": labels}), tmp_path / f"{name}.parquet")
    return tmp_path


MAP = {"cat": "class_0", "DOG": "Class 1", "fox": "class-2"}
LISTS = "Classes of the data: Cat, FOX, dog; of the model: class 0, class 1, class 2"
NAMED = "Data: 40 images of “animals”, classes Cat, dog, FOX, some under the model’s names"
BY_INDEX = "“right.parquet”, labelled by index alone, as if their classes were the model’s: class 0"
GUESSED = "unresolved warnings (not above chance) passes no gate"


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("source", "class_map", "code", "said"),
    [
        ("animals", None, 2, [LISTS, "--class-map says which is which"]),
        ("animals", "index", 2, [LISTS]),  # folders have no index
        ("animals", json.dumps(MAP | {"fox": "elk"}), 2, ["'elk' is neither", LISTS]),
        ("animals", "{", 2, ["--class-map must be JSON"]),
        ("animals", "no.json", 2, ["no.json"]),
        ("animals", "[]", 2, ["[]"]),
        ("animals", json.dumps(MAP), 0, [NAMED, "cat as class_0"]),
        ("animals", "map.json", 0, [NAMED]),
        ("right.parquet", None, 0, [BY_INDEX]),
        ("wrong.parquet", None, 1, ["no more than guessing among 3 classes gives", GUESSED]),
    ],
)
def test_data_of_other_classes_are_refused_mapped_or_held_against_chance(
    source: str, class_map: str | None, code: int, said: list[str], artifacts: Path, data: Path,
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(data)
    Path("map.json").write_text(json.dumps(MAP))
    command = [
        "evaluate", "--artifact", f"{artifacts}/dot", "--data", source, "--attack", "fgsm",
        "--eps", "1/255", "--gate", "clean_accuracy>=0.1", "--output", "out",
    ]  # fmt: skip
    assert main(command + (["--class-map", class_map] if class_map else [])) == code
    printed = "".join(capsys.readouterr())
    assert all(words in printed for words in said)
    if code == 2:
        return
    found = read_report(Path("out")).data
    own = None if source.endswith("parquet") else ["Cat", "dog", "FOX"]
    assert (found.name, found.split, found.source, found.classes) == (source, None, source, own)
    capsys.readouterr()
    assert main(["verify", "out", "--artifact", str(artifacts), "--data", source]) == 0


@pytest.mark.data
@pytest.mark.usefixtures("in_process")
def test_a_fashion_model_is_not_evaluated_on_cifar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [
        "evaluate", "--artifact", "artifacts/fashion-elliptical-adv", "--data", "cifar10",
        "--attack", "fgsm", "--eps", "8/255", "--limit", "64",
        "--gate", "robust_accuracy>=0.01", "--output", str(tmp_path),
    ]  # fmt: skip
    assert main(command) == 2
    told = capsys.readouterr().err
    assert "Classes of the data: airplane, automobile, bird" in told
    assert "of the model: T-shirt/top, Trouser, Pullover" in told and not [*tmp_path.iterdir()]
    assert main([*command, "--class-map", "index"]) == 1
    report = read_report(tmp_path)
    assert [warning.code for warning in report.summary.warnings] == ["not_above_chance"]
    assert report.data.name == "cifar10" and report.data.split == "test"
    assert report.summary.findings[0].startswith(
        "Data: 64 images of “cifar10” (split test, cifar10-"
    )


@pytest.mark.parametrize("content", ["attacks: pgd", "[" * 100_000])
def test_spec_that_is_no_json_is_refused(
    content: str, artifacts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "spec.json").write_text(content)
    assert main([*arguments(artifacts)[:5], "--spec", str(tmp_path / "spec.json")]) == 2
    told = capsys.readouterr().err
    assert told == "error: --spec must name a file of JSON, and spec.json is none\n"


def test_an_attack_that_does_not_exist_or_reads_texts_is_refused(
    artifacts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments(artifacts)[:5], "--attack", "typos"]) == 2
    told = capsys.readouterr().err
    assert "attack 'typos' works on texts" in told and "reads images" in told
    with pytest.raises(SystemExit) as error:
        main(arguments(artifacts, attack="pgdd"))
    told = capsys.readouterr().err
    assert error.value.code == 2 and told.count("\n") == 1
    assert "unknown attack 'pgdd'; did you mean 'pgd'?" in told


@pytest.mark.parametrize("command", ["evaluate", "verify"])
def test_help_tells_exit_codes_attacks_and_defaults(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parser().parse_args([command, "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert stop.value.code == 0 and "exit codes: 0 " in told
    if command == "evaluate":
        for name, kind in ATTACKS.items():
            fields = [f"{one.name}{_shown(one.default)}" for one in options(kind)]
            assert f" {name} {kind.info.what} {', '.join(fields)} " in told
        assert "alpha: length of a step" in told
        assert "(square 5000, sparse-rs 5000, " in told


@pytest.mark.parametrize(
    ("engine", "executor"), [("ray", RayExecutor), ("process", ProcessExecutor)]
)
def test_the_engine_is_the_one_that_was_named(
    engine: str, executor: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))  # importing it takes seconds
    options = parser().parse_args([*arguments(tmp_path), "--engine", engine, "--workers", "1"])
    assert type(_executor(options, [tmp_path])) is executor
