import re

import pytest
import torch

import models
from runtimes.artifact import open_artifact
from service.settings import ROOT, table

README = (ROOT / "README.md").read_text()


def test_readme_lists_every_setting_with_its_default() -> None:
    assert table() in README


@pytest.mark.parametrize("name", ["fashion-dot", "fashion-elliptical", "fashion-elliptical-adv"])
def test_readme_tells_the_figures_of_the_shipped_models(name: str) -> None:
    artifact = open_artifact(ROOT / "artifacts" / name)
    row = next(line for line in README.splitlines() if line.startswith(f"| `{name}`"))
    assert artifact.card is not None
    judged = artifact.card["robustness"]
    robust = {(a["name"], a["eps"]): a["robust"] for a in judged["attacks"]}
    shown = [judged["clean"], robust["fgsm", "8/255"], robust["pgd", "2/255"]]
    worst = robust["pgd", "8/255"]
    low, high = (100 * bound for bound in worst["ci"])
    expected = [f"{100 * artifact.manifest.metrics['test_accuracy']:.2f} %"]
    expected += [f"{100 * figure['top1']:.1f}" for figure in shown]
    expected += [f"{100 * worst['top1']:.1f} [{low:.1f}, {high:.1f}]"]
    assert row.endswith("| " + " | ".join(expected) + " |")


def test_readme_tells_the_figures_of_the_shipped_text_model() -> None:
    artifact = open_artifact(ROOT / "artifacts" / "imdb-transject")
    accuracy = 100 * artifact.manifest.metrics["test_accuracy"]
    size = sum(path.stat().st_size for path in artifact.folder.iterdir()) / 1e6
    assert f"{accuracy:.2f} % of the 25,000 test reviews" in " ".join(README.split())
    assert f"its artifact is {size:.1f} MB" in README


def test_readme_names_the_commands_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("demo", "test", "help", "install"):
        assert f"make {command}" in README and f"\n{command}:" in makefile


def test_models_are_documented_with_their_size() -> None:
    told = (ROOT / "docs" / "models.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", told, re.MULTILINE))
    for name in models.names():
        with torch.device("meta"):
            size = sum(each.numel() for each in models.build(name).parameters())
        assert rows[name.removesuffix("_elliptical")] == f"{size:,}", name
