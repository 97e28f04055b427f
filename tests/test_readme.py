import ast
import re
from pathlib import Path

import pytest
import torch
import yaml

import models
from docs.generate import DOCS, pages
from runtimes.artifact import open_artifact
from service.settings import ROOT

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("name", "text"), pages().items())
def test_generated_pages_are_what_code_and_records_give(name: str, text: str) -> None:
    assert (DOCS / name).read_text() == text, "run `python -m docs.generate`"


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    local = [link for link in links if not link.startswith("http")]
    assert not [link for link in local if not (page.parent / link).exists()]


def test_threats_name_tests_that_exist() -> None:
    rows = [line for line in (ROOT / "SECURITY.md").read_text().splitlines() if line[:2] == "| "]
    rows = [row for row in rows if not row.startswith("| threat |")]
    assert rows
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.split(" | ")[-1])
        assert named, row
        for path, test in named:
            defined = ast.walk(ast.parse((ROOT / path).read_text()))
            assert test in {getattr(each, "name", "") for each in defined}, f"{path}::{test}"


@pytest.mark.parametrize("name", ["fashion-dot", "fashion-elliptical", "fashion-elliptical-adv"])
def test_readme_tells_the_figures_of_the_shipped_models(name: str) -> None:
    artifact = open_artifact(ROOT / "artifacts" / name)
    row = next(line for line in README.splitlines() if line.startswith(f"| `{name}`"))
    assert artifact.card is not None
    scored = artifact.card["robustness"]
    robust = {(a["name"], a["eps"]): a["robust"] for a in scored["attacks"]}
    shown = [scored["clean"], robust["fgsm", "8/255"], robust["pgd", "2/255"]]
    worst = robust["pgd", "8/255"]
    low, high = (100 * bound for bound in worst["ci"])
    expected = [f"{100 * artifact.manifest.metrics['test_accuracy']:.2f} %"]
    expected += [f"{100 * figure['top1']:.1f}" for figure in shown]
    expected += [f"{100 * worst['top1']:.1f} [{low:.1f}, {high:.1f}]"]
    assert row.endswith("| " + " | ".join(expected) + " |")


def test_readme_is_short_and_tells_the_figures_of_the_shipped_text_model() -> None:
    assert len(README.splitlines()) <= 120
    artifact = open_artifact(ROOT / "artifacts" / "imdb-transject")
    accuracy = 100 * artifact.manifest.metrics["test_accuracy"]
    size = sum(path.stat().st_size for path in artifact.folder.iterdir()) / 1e6
    assert f"{accuracy:.2f} % of the 25,000 test reviews" in " ".join(README.split())
    assert f"its artifact is {size:.1f} MB" in README
    artifact = open_artifact(ROOT / "artifacts" / "imdb-characters")
    bits = artifact.manifest.metrics["test_bits_per_character"]
    size = sum(path.stat().st_size for path in artifact.folder.iterdir()) / 1e6
    assert f"{bits:.3f} bits per character of 2,500 reviews ({size:.1f} MB)" in README


def test_readme_tells_the_figures_of_the_shipped_segmenter() -> None:
    artifact = open_artifact(ROOT / "artifacts" / "scenes-segmenter")
    metrics, text = artifact.manifest.metrics, " ".join(README.split())
    size = sum(path.stat().st_size for path in artifact.folder.iterdir()) / 1e6
    iou = (f"{100 * metrics[f'test_{name}']:.2f} %" for name in ("item_mean_iou", "mean_iou"))
    assert "(mean IoU {}, with the background {})".format(*iou) in text
    assert f"its artifact has {size:.1f} MB" in text and size <= 8


def test_readme_workflow_and_hooks_run_what_the_makefile_runs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for command in ("demo", "test", "test-all", "help", "install"):
        assert f"make {command}" in README and f"\n{command}:" in makefile
    workflow = yaml.safe_load((ROOT / ".github/workflows/check.yml").read_text())
    steps = [step for job in workflow["jobs"].values() for step in job["steps"] if "run" in step]
    assert [step["run"] for step in steps] == ["make check", "make test-all"]
    assert "\ncheck: " in makefile
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    for hook in config["repos"][0]["hooks"]:
        command = hook["entry"].removesuffix(" --force-exclude")
        assert f"$(BIN)/{command}" in makefile, hook["id"]


def test_models_are_documented_with_their_size() -> None:
    told = (ROOT / "docs" / "reference" / "models.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+) \|$", told, re.MULTILINE))
    for name in [name for name in models.names() if not name.endswith("_elliptical")]:
        with torch.device("meta"):
            size = sum(each.numel() for each in models.build(name).parameters())
        assert rows[name] == f"{size:,}", name
