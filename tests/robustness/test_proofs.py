"""Proofs and attacks side by side: broken, proved and open inputs, and what contradicts a proof."""

import re
from copy import copy
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import models
from data.sets import Origin, TextSet
from models.analysis.substitutions import Substitutions as Table
from robustness.__main__ import CONTRADICTED, _exit_code
from robustness.attacks.base import Batch, Search
from robustness.attacks.words import Reader, Ways, alternatives, replaced_words, slips
from robustness.attacks.worst_words import WorstWords
from robustness.brackets import brackets
from robustness.certificates.substitutions import Substitutions
from robustness.certificates.words import WordProof
from robustness.chunks import model_result
from robustness.console import render
from robustness.evaluation import evaluate
from robustness.kinds import NotPossible
from robustness.progress import Meter
from robustness.report import html
from robustness.report.build import build_report
from robustness.report.lookup import changed_text
from robustness.report.schema import Report, read_report
from robustness.report.write import card, junit, sample_rows
from robustness.rescore import Outcome, rescore
from robustness.results import ProofResult
from robustness.scoring import combine
from robustness.spec import EvaluationSpec
from robustness.store import ranges
from robustness.text_target import TextTarget
from tests.robustness.conftest import make_images, provable_images, target_of
from tests.robustness.made_report import made_clean, made_result, made_scoring

PROOF = {"name": "substitutions", "edits": [1, 2]}
HOTFLIP = {"name": "hotflip", "edits": [1, 3], "queries": 60}
SLIPS = {"name": "slips", "edits": [1, 2]}
SEARCH = Search(seeds=[])
TYPOS = {"name": "typos", "edits": [1], "queries": 8}


def spec_of(*attacks: dict[str, Any], **fields: Any) -> EvaluationSpec:
    return EvaluationSpec.model_validate({"attacks": list(attacks), **fields})


def texts_of(texts: list[str]) -> TextSet:
    return TextSet(
        names=texts, labels=None, label_names=None, description="made", reader=lambda i: texts[i]
    )


def test_every_input_is_broken_proved_or_open(
    provable: TextTarget, texts: list[str], tmp_path: Path
) -> None:
    spec = spec_of(PROOF, HOTFLIP, TYPOS, gate="proved_accuracy >= 0.1")
    report = evaluate(spec, [provable], texts_of(texts), tmp_path)
    [model], gate = report.summary.models, report.summary.gate
    one, two = model.brackets
    # Typos change the number of pieces, and three edits are more than two.
    assert one.attacks == two.attacks == ["HotFlip with 1 edit"]
    for found in (one, two):
        assert found.broken + found.proved + found.open == model.samples
        assert found.proved_accuracy.top1 <= found.robust_accuracy.top1 < 1
        assert not found.contradictions and 0 < found.rounding < 1e-3
    assert one.proved > two.proved > 0 < one.broken
    assert gate is not None and model.proved is not None and model.proved == two.proved_accuracy
    assert gate.value == model.proved.ci[0] and gate.passed == (gate.value >= 0.1)
    states = [[each.state for each in s.models[0].proofs] for s in report.samples]
    assert [s for s, _ in states].count("proved") == one.proved
    assert read_report(tmp_path) == report
    assert changed_text(tmp_path, 0, attack="none")["changes"] == [("same", texts[0])]
    for shown in (render(report), card(report), html.render(report), junit(report).decode()):
        assert two.finding.split(":")[0] in shown.replace("\\", "")
    rows = [row for row in sample_rows(report) if row["attack"] == "substitutions"]
    assert [row["state"] for row in rows] == [state for both in states for state in both]


def test_the_worst_case_is_written_as_a_text(
    provable: TextTarget, texts: list[str], tmp_path: Path
) -> None:
    spec = spec_of(PROOF, {"name": "worst-pieces", "edits": [1, 2]})
    report = evaluate(spec, [provable], texts_of(texts), tmp_path)
    for found, least in zip(report.summary.models[0].brackets, (0, 3), strict=True):
        assert found.broken > least and found.open <= 1 and not found.contradictions
    tokenizer, table = provable.require_tokenizer(), provable.require_tokenizer().vocabulary()
    [attack] = spec_of({"name": "worst-pieces", "edits": [1]}).attacks
    labels = provable.predict(texts).argmax(axis=1)
    made = attack.run(
        provable, Batch(inputs=texts, labels=labels), attack.budgets()[0], Search(seeds=[])
    )
    for text, label, found in zip(texts, labels, made.texts, strict=True):
        words = text.split()
        others = [
            " ".join([*words[:i], new, *words[i + 1 :]])
            for i in range(len(words))
            for new, more in zip(table.texts, table.continues, strict=True)
            if new and not more
        ]
        length = len(tokenizer.ids([text], 24)[0])
        same = [one for one in others if len(tokenizer.ids([one], 24)[0]) == length]
        assert margin_of(provable, [found], label) == pytest.approx(
            margin_of(provable, same, label), abs=1e-5
        )


def test_rows_of_the_embedding_that_no_tokenizer_gives_are_not_written(
    provable: TextTarget,
) -> None:
    none = torch.zeros(5, dtype=torch.int64)
    table = Table(provable.require_torch_model(), none)  # five pieces, fewer than rows
    table.extend(5)
    assert table.gains(torch.arange(5), 0, none)[2].max() < 5


def margin_of(target: TextTarget, texts: list[str], label: int) -> float:
    """The smallest margin of a label."""
    logits = target.predict(texts)
    return float((logits[:, label] - logits[:, 1 - label]).min())


IMAGE_PROOFS = [
    {"name": "pixel-bounds", "eps": ["1/255", "0.02"]},
    {"name": "pixel-bounds", "norm": "L2", "eps": ["0.03"]},
    {"name": "patch-bounds", "patches": [1]},
    {"name": "square-bounds", "patch": [1]},
]
IMAGE_ATTACKS = [
    {"name": "pgd", "eps": ["0.01", "0.03"], "steps": 5},
    {"name": "square", "norm": "L2", "eps": ["0.03"], "queries": 5},
    {"name": "patch-fool", "patches": [1, 2], "steps": 5},
    {"name": "patch-rs", "patch": [1], "queries": 5},
    {"name": "corruptions", "names": ["fog"], "severities": [1]},
]


def test_proofs_of_images_meet_the_attacks_of_their_set(tmp_path: Path) -> None:
    target, images = provable_images(2), make_images(20, num_classes=None)
    gate = "proved_accuracy >= 0.01"
    report = evaluate(spec_of(*IMAGE_PROOFS, *IMAGE_ATTACKS, gate=gate), [target], images, tmp_path)
    [model] = report.summary.models
    inside = {(one.kind, one.eps): one.attacks for one in model.brackets}
    assert inside == {
        ("Linf", "1/255"): [], ("Linf", "0.02"): ["PGD within 0.01"],
        ("L2", "0.03"): ["Square within 0.03 (l2)"],
        ("patch", "1"): ["Patch-RS with one patch of 1x1 pixels"],
        ("patches", "1"): ["Patch-Fool with 1 patch replaced"],
    }  # fmt: skip
    for one in model.brackets:
        assert one.broken + one.proved + one.open == 20 and not one.contradictions
        assert sum(one.methods.values()) == one.proved
        assert one.proved <= round(20 * one.robust_accuracy.top1)
    small, large, ball, *_ = model.brackets
    assert small.proved > large.proved < large.robust_accuracy.top1 * 20
    assert 0 < small.methods["linear relaxation"] and 0 < ball.proved
    assert "proved (by linear relaxation)" in small.finding
    assert model.proved is not None
    assert model.proved.top1 <= min(one.proved_accuracy.top1 for one in model.brackets)
    escaped = small.finding.replace("\N{NO-BREAK SPACE}", " ")
    escaped = escaped.replace("(", "\\(").replace(")", "\\)")
    assert small.finding in render(report) and escaped in card(report)
    assert small.finding in junit(report).decode()
    assert "<p>Any change within 1/255" in html.render(report)
    rows = [row for row in sample_rows(report) if row["attack"] == "pixel-bounds"]
    assert {(row["norm"], row["point"]) for row in rows} == {
        ("Linf", "1/255"), ("Linf", "0.02"), ("L2", "0.03")
    }  # fmt: skip
    result, outcome = model_result(report.spec, target, ranges(20), tmp_path), Outcome()
    rescore(report, tmp_path, result, target.load(images), np.arange(20), Meter(10**9), outcome)
    assert not outcome.refuted


def test_scoring_again_proves_again(provable: TextTarget, texts: list[str], tmp_path: Path) -> None:
    spec, rows = spec_of(PROOF), np.arange(len(texts))
    report = evaluate(spec, [provable], texts_of(texts), tmp_path)
    result, refuted = model_result(spec, provable, ranges(len(texts)), tmp_path), []
    first, second = result.cells
    assert isinstance(second, ProofResult)
    flattering = replace(second, margin=second.margin + 1e-3 * (rows == 3))
    for found in (second, flattering):
        stored, outcome = replace(result, cells=[first, found]), Outcome()
        rescore(report, tmp_path, stored, texts, rows, Meter(10**9), outcome)
        refuted.append(outcome.refuted)
    assert not refuted[0] and "input 4" in refuted[1][0]
    assert "substitutions 2, margin is not as reported" in refuted[1][0] and len(refuted[1]) == 1


def test_a_margin_is_that_of_the_model_after_its_worst_case(
    provable: TextTarget, texts: list[str]
) -> None:
    import torch

    [proof] = spec_of(PROOF).attacks
    budget, labels = proof.budgets()[1], provable.predict(texts).argmax(axis=1)
    assert isinstance(proof, Substitutions)
    batch = Batch(inputs=texts, labels=labels)
    found = ProofResult(**proof.prove(provable, batch, budget, Search(seeds=[])))
    rows = provable.require_tokenizer().ids(texts, provable.max_len)
    for i, row in enumerate(rows):
        row[found.places[:, i]] = found.pieces[:, i]
        logits = provable.require_torch_model()(torch.from_numpy(row)[None]).detach().numpy()[0]
        margin = logits[labels[i]] - logits[1 - labels[i]]
        assert abs(margin - found.margin[i]) < found.rounding[i]


def contradicted(target: TextTarget, fooled: int = 1) -> Report:
    """A report in which HotFlip misleads on some texts that are proved to hold."""
    spec = spec_of(PROOF | {"edits": [3]}, HOTFLIP | {"edits": [2]}, TYPOS, gate=GATE)
    label, none = np.zeros(8, np.int64), np.zeros(8)
    proof = ProofResult(
        margin=none + 0.5, rounding=none + 0.1, places=np.array([[4] * 8, [2] * 8, [-1] * 8]),
        pieces=np.array([[9] * 8, [7] * 8, [-1] * 8]), method=label,
    )  # fmt: skip
    clean, fallen = made_clean(label), (np.arange(8) < fooled).astype(np.int64)
    hotflip = combine(clean, [made_scoring(fallen)], ["plain"])
    typos = combine(clean, [made_scoring(label + 1)], ["plain"])
    result = made_result(target, clean, proof, hotflip, typos, spec=spec)
    origin = Origin(name="made", classes=["neg", "pos"])
    return build_report([result], list("abcdefgh"), label, {}, origin, given=8)


GATE = "clean_accuracy >= 0"


def test_a_contradicted_proof_fails_every_gate_with_both_witnesses(bag: TextTarget) -> None:
    report = contradicted(bag)
    [found] = report.summary.models[0].brackets
    assert (found.broken, found.proved, found.open) == (1, 7, 0)
    [both] = found.contradictions
    assert (both.sample, both.attack, both.eps, both.adversarial_index) == (0, "hotflip", "2", 1)
    assert (both.places, both.pieces, both.margin, both.rounding) == ([4, 2], [9, 7], 0.5, 0.1)
    assert "proof_contradicted" in {warning.code for warning in report.summary.warnings}
    gate = report.summary.gate
    assert not report.summary.reliable and gate is not None and not gate.passed
    assert _exit_code(report) == CONTRADICTED == 3
    wrong = "sample 0 does not hold. It says: with 3 pieces replaced a margin of 0.5 is left"
    assert wrong in both.finding and both.finding in html.render(report)
    assert both.finding.endswith(
        "HotFlip with 2 edits misleads the model: as served the answer is “pos”."
    )
    sound = contradicted(bag, fooled=0)
    assert not sound.summary.models[0].brackets[0].contradictions
    assert _exit_code(sound) != CONTRADICTED


def test_a_misclassified_input_contradicts_its_own_proof(bag: TextTarget) -> None:
    label = np.zeros(2, np.int64)
    flat = np.full((1, 2), -1)
    proof = ProofResult(
        margin=label + 1.0, rounding=label * 0.0, places=flat, pieces=flat, method=label
    )
    clean = made_clean(label, rank=np.array([1, 0]), index=np.array([1, 0]))
    result = made_result(bag, clean, proof, spec=spec_of(PROOF | {"edits": [1]}))
    [found] = brackets(result)
    assert found.contradicted.tolist() == [True, False] == found.broken.tolist()


def test_models_without_a_proof_are_refused_before_anything_runs(
    bag: TextTarget, provable: TextTarget, texts: list[str], tmp_path: Path
) -> None:
    coarse, blind = copy(provable.runtime), replace(provable, torch_model=None)
    vars(coarse)["precision"] = "int8"
    for target, message in [
        (bag, "proves nothing of 'small': .* not of Bag"),
        (blind, "whose weights nobody can see"),
        (replace(provable, runtime=coarse), "bounded for fp32, and it is served in int8"),
        (replace(provable, relabel=lambda text: 0), "labels change with the text"),
    ]:
        with pytest.raises(NotPossible, match=message):
            evaluate(spec_of(PROOF), [target], texts_of(texts), tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_early_stop_looks_at_proved_accuracy(
    provable: TextTarget, texts: list[str], tmp_path: Path
) -> None:
    many = [f"{one} {word}" for word in ("a", "film", "as", "the", "end") for one in texts]
    spec = spec_of(PROOF | {"edits": [1]}, gate="proved_accuracy >= 0.01", stop="early")
    report = evaluate(spec, [provable], texts_of(many), tmp_path)
    gate = report.summary.gate
    assert gate is not None and gate.passed and report.data.samples == 32
    page = html.render(report)
    assert "decided after 32 of 60 texts" in page and "95\u00a0% interval" not in page


@pytest.mark.parametrize("experts", [1, 2])
def test_models_whose_pieces_meet_are_proved_by_a_bound(
    experts: int, provable: TextTarget, texts: list[str], tmp_path: Path
) -> None:
    tokenizer = provable.require_tokenizer()
    name = "transject_random" if experts > 1 else "transject"
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = models.build(
            name, vocab_size=tokenizer.vocab_size, seq_len=24, embed_dim=8, depth=1,
            num_experts=experts,
        ).eval()  # fmt: skip
        parameters = dict(model.named_parameters())
        nn.init.constant_(parameters["encoder.layers.0.r"], 0.1)
        nn.init.eye_(parameters["head.bias"][None])  # a lead that some texts keep
    target = target_of(model, tokenizer, ["neg", "pos"])
    spec = spec_of(PROOF | {"edits": [1]}, HOTFLIP | {"edits": [1], "queries": 9})
    long = [" ".join(texts[i : i + 3]) for i in range(6)]
    report = evaluate(spec, [target], texts_of(long), tmp_path)
    [found] = report.summary.models[0].brackets
    assert not found.contradictions and found.proved > 0
    assert found.methods == {"bounds of gates and eigenvalues": found.proved}
    assert "by bounds of gates and eigenvalues" in render(report)


WORST = {"name": "worst-words", "edits": [1, 2]}
TABLE = {"film": "end, bad acting", "The": "a", "bad": ["great", "äpfel", "fine-film"]}
SYNONYMS = {"name": "synonyms", "edits": [1, 2], "table": TABLE}


def proved_of(asked: dict[str, Any], target: TextTarget, texts: list[str]) -> list[ProofResult]:
    """What is proved of texts with the labels that they have, one and two words at a time."""
    [proof] = spec_of(asked).attacks
    assert isinstance(proof, WordProof)
    batch = Batch(inputs=texts, labels=target.predict(texts).argmax(axis=1))
    return [ProofResult(**proof.prove(target, batch, one, SEARCH)) for one in proof.budgets()]


def parts_of(text: str, ways: Ways) -> tuple[list[str], list[list[str]]]:
    """A text in parts, and what may stand in the place of each."""
    parts = re.split(r"([a-zA-Z]+)", text)
    return parts, [list(ways(part) or ()) if i % 2 else [] for i, part in enumerate(parts)]


def test_slips_are_proved_against_every_slip(provable: TextTarget) -> None:
    texts, draw = ["the film", "end, bad!"], Random(0)
    labels = provable.predict(texts).argmax(axis=1)
    one, two = proved_of(SLIPS, provable, texts)
    for i, text in enumerate(texts):
        parts, ways = parts_of(text, slips)
        single = [
            "".join([*parts[:k], new, *parts[k + 1 :]])
            for k in range(len(parts))
            for new in ways[k]
        ]
        least = margin_of(provable, [text, *single], labels[i])
        assert least == pytest.approx(one.margin[i], abs=1e-5)
        several = []
        for _ in range(60):
            chosen = draw.sample([k for k, way in enumerate(ways) if way], 2)
            drawn = [draw.choice(w) if k in chosen else parts[k] for k, w in enumerate(ways)]
            several.append("".join(drawn))
        assert two.margin[i] < margin_of(provable, several, labels[i]) + 1e-5
        assert two.margin[i] <= one.margin[i]


def test_synonyms_are_proved_against_every_text_of_the_table(provable: TextTarget) -> None:
    long = " fine" * 19 + " bad film"  # replaced words push others out of what is read
    texts = ["The FILM, bad film!", "bad (film) the end", "Great acting" + long, "1film the-bad"]
    labels = provable.predict(texts).argmax(axis=1)
    proved = proved_of(SYNONYMS, provable, texts)
    [attack] = spec_of(WORST | {"table": TABLE}).attacks
    assert isinstance(attack, WorstWords)
    batch = Batch(inputs=texts, labels=labels)
    for count, found, budget in zip((1, 2), proved, attack.budgets(), strict=True):
        search = Search(seeds=[], leave=False)
        made = attack.run(provable, batch, budget, search)
        assert attack.allowed(batch, made, budget, provable, []).all()
        for i, text in enumerate(texts):
            parts, ways = parts_of(text, attack.ways)
            every = product(*([part, *way] for part, way in zip(parts, ways, strict=True)))
            inside = [
                "".join(each)
                for each in every
                if sum(a != b for a, b in zip(each, parts, strict=True)) <= count
            ]
            assert len(inside) > 3
            least = margin_of(provable, inside, labels[i])
            assert least == pytest.approx(found.margin[i], abs=1e-5)
            assert least == pytest.approx(margin_of(provable, [made.texts[i]], labels[i]), abs=1e-6)


def test_attacks_on_words_lie_within_the_proof_about_the_same_words(
    provable: TextTarget, texts: list[str], tmp_path: Path
) -> None:
    known, other = [*texts[:5], "äpfel the film"], {"film": ["movie"]}
    spec = spec_of(
        SLIPS, SYNONYMS, TYPOS, WORST | {"edits": [2]}, WORST | {"edits": [1], "table": TABLE},
        {"name": "thesaurus", "edits": [2], "table": TABLE, "queries": 20},
    )  # fmt: skip
    report = evaluate(spec, [provable], texts_of(known), tmp_path)
    one, two, first, second = report.summary.models[0].brackets
    assert one.attacks == ["Typos with 1 edit"] and two.attacks[1:] == ["Worst Words with 2 edits"]
    assert first.attacks == ["Worst Words with 1 edit"]
    assert second.attacks == ["Worst Words with 1 edit", "Thesaurus with 2 edits"]
    assert "With 1 word of the table replaced" in first.finding
    for found in (one, two, first, second):
        assert not found.contradictions and found.proved + found.open + found.broken == 6
    assert one.proved >= two.proved and one.proved > 0 and second.proved > 0
    # Both ends of an exact bracket meet, but where letters are not known.
    assert two.open <= 1 and first.open == 0
    flags = report.samples[5].models[0].proofs[0]
    assert (flags.state, flags.margin) in {("open", 0), ("broken", 0)}
    assert spec_of(WORST | {"table": other}).attacks[0].changes != spec.attacks[1].changes
    rows, outcome = np.arange(6), Outcome()
    result = model_result(spec, provable, ranges(6), tmp_path)
    rescore(report, tmp_path, result, known, rows, Meter(10**9), outcome)
    assert not outcome.refuted


def test_more_replaced_words_than_a_text_has_cost_no_memory(provable: TextTarget) -> None:
    for asked in (SYNONYMS, SLIPS):
        [some, most] = proved_of(asked | {"edits": [3, 10**9]}, provable, ["the film"])
        assert most.margin == pytest.approx(some.margin)
        assert len(most.places) == provable.max_len


def test_words_that_are_read_otherwise_together_are_open(provable: TextTarget) -> None:
    table = alternatives({"film": ["end"], "br": ["bad"], "the": ["br"], "電影": ["bad"]})
    for ways, text, count, known in [
        (slips, "the film", 2, True),
        (slips, "film3film", 1, True),
        (slips, "film3film", 2, False),  # two words that are read as one
        (slips, "the <brr> film", 1, False),  # without an r it would be a blank
        (slips, "häm", 1, False),
        (slips, "a" * 101, 1, False),
        (slips, "abc1" * 25_000, 1, False),
        (table, "häm the film", 2, True),
        (table, "a <the> film", 1, False),
        (table, "a film<br />", 1, False),  # a mark of HTML is no word
        (table, "電影", 1, False),  # two words for the tokenizer
        (slips, "it is it is it häm", 1, True),  # which is not read
    ]:
        reader = Reader(provable.require_tokenizer(), ways, 4, count)
        assert (reader.places(text) is not None) == known, text


def test_a_text_is_replaced_word_by_word() -> None:
    ways = alternatives({"film": ["end", "bad acting"], "a": ["the film"]})
    for after, count in [
        ("a film film", 0), ("the film film film", 1), ("a end bad acting", 2),
        ("a END film", None), ("a film", None), ("a film filme", None),
    ]:  # fmt: skip
        assert replaced_words("a film film", after, ways) == count
    assert replaced_words("FILM, Film", "BAD ACTING, End", ways) == 2


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"two words": ["one"]}, "table must hold words of at most 50 letters"),
        ({"one": ["<br>"]}, "got '<br>'"),
        ({"one": ["a" * 51]}, "at most 50 letters"),
        ({"One": ["two"], "one": ["three"]}, "must not name a word twice"),
        ({"one": ["two"] * 1_001}, "at most 1,000 alternatives of a word, got 1,001 of 'one'"),
        ({"a" * n: ["two"] * 1_000 for n in range(1, 51)} | {"b": ["c"]}, "got 50,001"),
        ({}, "at least 1 item"),
        ("table.tsv", "valid dictionary"),
    ],
)
def test_what_is_no_table_is_refused(table: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        spec_of(SYNONYMS | {"table": table})
