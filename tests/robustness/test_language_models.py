"""Word Swap on language models: perplexities and their ratio, from artifact to report and gate."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from data.sets import Origin, TextSet
from robustness.__main__ import main
from robustness.attacks.word_swap import swap_words
from robustness.evaluation import evaluate
from robustness.kinds import NotPossible
from robustness.report.schema import Figure
from robustness.report.sentences import outcome
from robustness.spec import EvaluationSpec, parse_gate
from robustness.tasks import NextTokens
from robustness.text_target import LanguageTarget, open_model
from runtimes.artifact import Artifact
from runtimes.surprise import score_tokens, windows
from tests.exported import WORDS

SPEC: dict[str, Any] = {"attacks": [{"name": "word-swap", "rate": ["0.025", "0.5"]}]}


class Sharper:
    """A runtime that is surer of everything than another one."""

    def __init__(self, runtime: Any, times: float) -> None:
        self.name, self.precision = runtime.name, runtime.precision
        self._runtime, self._times = runtime, times

    def predict(self, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        return self._runtime.predict(inputs) * np.float32(self._times)


def texts(count: int = 40, *, labels: np.ndarray | None = None) -> TextSet:
    draw = np.random.default_rng(1)
    found = [" ".join(draw.choice(WORDS.split(), 5 + i % 30)) for i in range(count)]
    return TextSet(
        names=[f"review {i}" for i in range(count)], labels=labels, label_names=None,
        description="words", reader=lambda index: found[index], origin=Origin(name="words"),
    )  # fmt: skip


@pytest.fixture
def target(language_artifact: Artifact) -> LanguageTarget:
    found = open_model(language_artifact, threads=1)
    assert isinstance(found, LanguageTarget)
    return found


def spec_of(**changes: Any) -> EvaluationSpec:
    return EvaluationSpec.model_validate(SPEC | changes)


def loss_of(target: LanguageTarget, text: str) -> tuple[float, int]:
    """Of one text: each token from the window that first holds it, one token at a time."""
    [ids] = target.require_tokenizer().ids([text], 1000)
    starts, total = windows(len(ids), target.max_len), 0.0
    for place in range(1, len(ids)):
        start = next(s for s in starts if place < s + target.max_len)
        row = ids[None, start:place]
        logits = target.runtime.predict({"tokens": row, "mask": np.ones_like(row, bool)})[0, -1]
        logits = logits.astype(np.float64)
        total += float(np.log(np.exp(logits).sum()) - logits[ids[place]])
    return total, len(ids) - 1


def perplexity(target: LanguageTarget, some: list[str]) -> float:
    found = [loss_of(target, text) for text in some]
    return float(np.exp(sum(one[0] for one in found) / sum(one[1] for one in found)))


class Measures(NamedTuple):
    """Perplexity and ratio, both with their intervals."""

    perplexity: float
    perplexity_ci: tuple[float, float]
    ratio: float
    ratio_ci: tuple[float, float]


def measures(figure: Figure) -> Measures:
    return Measures(**{name: getattr(figure, name) for name in Measures._fields})


def test_tokens_are_scored_once_each_from_windows() -> None:
    ids, asked = np.arange(11) % 5, list[int]()

    def ask(tokens: np.ndarray) -> np.ndarray:
        asked.extend(tokens[:, 0].tolist())
        return np.log(np.eye(5)[(tokens + 1) % 5] * 0.5 + 0.1)  # sure of the next number

    wrong, loss, tokens = score_tokens(ids, 4, ask)
    assert (wrong, tokens) == (0, 10) and loss == pytest.approx(-10 * np.log(0.6))
    assert asked == [int(ids[start]) for start in windows(11, 4)]


def test_report_holds_perplexities_and_ratios(target: LanguageTarget, tmp_path: Path) -> None:
    inputs = texts(labels=np.arange(40) % 2)  # labels say nothing of the next token
    report = evaluate(spec_of(gate="perplexity_ratio <= 2"), [target], inputs, tmp_path)
    summary, model = report.summary, report.summary.models[0]
    plain = perplexity(target, list(inputs))
    assert summary.metric == "token accuracy" and summary.reliable, summary.warnings
    assert model.clean.perplexity == pytest.approx(plain, rel=1e-4)
    seeds = report.spec.attacks[0].seeds(0, report.spec.attacks[0].budgets()[1], list(inputs))
    swapped = [swap_words(text, rate=0.5, seed=s) for text, s in zip(inputs, seeds, strict=True)]
    few, most = (measures(one.robust) for one in model.attacks)
    assert most.perplexity == pytest.approx(perplexity(target, swapped), rel=1e-4)
    assert most.ratio == pytest.approx(most.perplexity / plain, rel=1e-4)
    assert model.largest is not None and model.largest.ratio == most.ratio
    low, high = most.ratio_ci
    assert low < most.ratio < high
    # The interval of a ratio is of pairs: narrower than that of a perplexity.
    ends = few.perplexity_ci[1] - few.perplexity_ci[0]
    assert few.ratio_ci[1] - few.ratio_ci[0] < ends / few.perplexity
    assert summary.gate is not None and summary.gate.value == high
    assert summary.gate.passed and "upper bound" in summary.gate.reason
    assert "has a perplexity of" in summary.headline and "times as high" in summary.headline
    assert " → " in outcome(model) and model.classes == [] and report.samples[0].label is None
    assert "perplexity" in report.definitions and "ratio" in report.definitions
    page = (tmp_path / "report.html").read_text()
    assert "perplexity" in page and "times that of the unchanged texts" in page
    one = report.samples[3].models[0]
    assert one.clean.probability is not None
    assert 1 / one.clean.probability == pytest.approx(perplexity(target, [list(inputs)[3]]), 1e-3)


def test_two_models_are_compared_text_by_text(target: LanguageTarget, tmp_path: Path) -> None:
    vague = replace(target, name="vague", digest="0" * 64, runtime=Sharper(target.runtime, 0.5))
    report = evaluate(spec_of(), [target, vague], texts(), tmp_path)
    other = report.summary.comparison
    assert other is not None and other.largest is not None and other.clean.perplexity_ci is not None
    one, two = (model.clean.perplexity for model in report.summary.models)
    assert one is not None and two is not None and other.clean.perplexity is not None
    assert other.clean.perplexity == pytest.approx(one / two)
    assert other.clean.difference == 0 and "the perplexity of tiny-language is" in other.finding
    low, high = other.clean.perplexity_ci
    assert low < other.clean.perplexity < high


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attacks": [{"name": "typos", "edits": [1]}]},
         "'typos' is about the class of an input, and 'tiny-language' answers with the next token"),
        ({"attacks": [{"name": "slips", "edits": [1]}]}, "'slips' is about the class"),
        ({"attacks": [{"name": "pgd", "eps": ["1/255"]}]}, "'pgd' works on images, got texts"),
        ({"gate": "robust_accuracy >= 0.1"}, "gate must compare perplexity_ratio"),
        ({"top_k": [1, 2]}, "top_k must be 1 and class_map be left out for next tokens"),
        ({"gate": "perplexity_ratio < 2", "stop": "early"}, "stop must be 'end' for a language"),
    ],
)  # fmt: skip
def test_what_says_nothing_about_next_tokens_is_refused(
    target: LanguageTarget, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(NotPossible, match=message):
        evaluate(spec_of(**changes), [target], texts(4), tmp_path)


def test_texts_and_models_that_cannot_be_compared_are_refused(
    target: LanguageTarget, text_artifact: Artifact, tmp_path: Path
) -> None:
    short = replace(texts(3), reader=lambda index: ["good film", "good", "a film"][index])
    with pytest.raises(NotPossible, match="at least two tokens each, got fewer in review 1"):
        evaluate(spec_of(), [target], short, tmp_path)
    classifier = open_model(text_artifact, threads=1)
    with pytest.raises(NotPossible, match="compare_with must"):
        evaluate(spec_of(), [target, classifier], texts(3), tmp_path)
    other = replace(target, digest="1" * 64, tokenizer=text_artifact.tokenizer())
    with pytest.raises(NotPossible, match="same tokens as model: perplexity is by token"):
        evaluate(spec_of(), [target, other], texts(3), tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("perplexity_ratio >= 1", "gate must compare perplexity_ratio by <= or <, got '>='"),
        ("robust_accuracy <= 1", "gate must compare robust_accuracy by >= or >, got '<='"),
        ("perplexity_ratio < 0", "gate must compare with a positive number, got '0'"),
        ("perplexity_ratio < inf", "positive number"),
    ],
)
def test_a_ratio_is_bounded_from_above(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_gate(text)
    gate = parse_gate("perplexity_ratio < 1.2")
    assert gate.bound((1.0, 1.1)) == 1.1 and gate.holds(1.1) and not gate.holds(1.2)


def test_what_is_not_finite_counts_as_wrong() -> None:
    task = NextTokens()
    answers = np.array([[1, 4.0, 4], [1, np.nan, 4], [0, 0, 0]], np.float32)
    nothing = np.zeros((3, 0), np.int64)
    assert task.rank(answers, nothing).tolist() == [250_000, 1_000_000, 0]
    assert task.share(task.rank(answers, nothing), nothing).tolist() == [0.75, 0, 1]
    assert task.margin(answers, nothing).tolist() == [-1, -np.inf, 0]
    down, up = (task.shifted(answers, nothing, share) for share in (-0.1, 0.1))
    assert down[0].tolist() == pytest.approx([2, 4.4, 4]) and up[0, 1] == pytest.approx(3.6)


@pytest.mark.usefixtures("in_process")
def test_artifact_is_evaluated_verified_and_gated_from_the_command_line(
    language_artifact: Artifact, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, data = str(language_artifact.folder), tmp_path / "reviews.csv"
    data.write_text("text\n" + "".join(f'"{text}"\n' for text in texts(12)))
    options = ["--artifact", folder, "--data", str(data), "--output", str(tmp_path / "out")]
    gate = ["--gate", "perplexity_ratio <= 0.5"]
    assert main(["evaluate", *options, "--attack", "word-swap", *gate]) == 1
    told = capsys.readouterr().out
    assert "token accuracy on 12 texts" in told and "perplexity" in told and "ratio" in told
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    [model] = report["summary"]["models"]
    assert report["summary"]["warnings"] == [] and model["attacks"][0]["robust"]["ratio"] > 0
    assert "perplexity" in (tmp_path / "out" / "card.md").read_text()
    verify = ["verify", str(tmp_path / "out"), "--artifact", folder]
    assert main([*verify, "--data", str(data)]) == 0
    changed = json.dumps(report).replace(f'"ratio": {model["largest"]["ratio"]}', '"ratio": 1.5')
    (tmp_path / "out" / "report.json").write_text(changed)
    assert main(verify) == 1
    assert main(["evaluate", *options, "--attack", "typos"]) == 2
    assert "use word-swap" in capsys.readouterr().err
