"""Evaluations of texts: what may be uploaded, and what comes of it."""

import io
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.sources import TextSet
from robustness.report.lookup import difference
from robustness.spec import ATTACKS
from runtimes.artifact import Artifact
from service.jobs.uploads import open_inputs
from tests.service.front import Front, archive, check_error, pictures, zipped
from tests.service.tiny_artifact import TEXT_LABELS

TYPOS = json.dumps({"attacks": [{"name": "typos", "edits": [1], "queries": 5}]})
TEXTS = ["a good film", "the plot was bad", "is the film not very good"]
ROWS = b'text,label\na good film,pos\n"bad, very bad",neg\n'


def parquet(**columns: Any) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table(columns), stream, store_schema=False)
    return stream.getvalue()


def post(front: Front, **form: Any) -> Any:
    return front.post(**({"files": [], "spec": TYPOS} | form))


def stored(front: Front, **form: Any) -> tuple[list[str], list[int] | None]:
    response = post(front, **form)
    assert response.status_code == 202, response.text
    found = open_inputs(front.folder(response.json()["id"]), TEXT_LABELS)
    assert isinstance(found, TextSet)
    return list(found), None if found.labels is None else found.labels.tolist()


def test_texts_come_as_a_list_csv_or_parquet(front: Front) -> None:
    texts = json.dumps(TEXTS)
    assert stored(front, texts=texts) == (TEXTS, None)
    odd = ["a\r\n\rb\n", ' "c, d" ', "\ufeffe", "f\0", "g\u2028h"]
    assert stored(front, texts=json.dumps(odd)) == (odd, None)
    assert stored(front, texts=texts, labels='["pos", 0, "pos"]') == (TEXTS, [1, 0, 1])
    assert stored(front, files=archive(ROWS)) == (["a good film", "bad, very bad"], [1, 0])
    table = parquet(text=TEXTS, label=[1, 0, 1])
    assert stored(front, files=archive(table)) == (TEXTS, [1, 0, 1])


def test_word_swap_is_run_on_a_language_model(
    artifacts: dict[str, Artifact], language_artifact: Artifact, tmp_path: Path
) -> None:
    known = artifacts | {"tiny-language": language_artifact}
    spec = {"model": "tiny-language", "attacks": [{"name": "word-swap", "rate": ["0.5"]}]}
    with closing(Front(tmp_path, known)) as front:
        for changes, texts, code, message in (
            ({"attacks": [{"name": "typos"}]}, TEXTS, "invalid_spec", "use word-swap"),
            ({"compare_with": "tiny-transject"}, TEXTS, "invalid_spec", "same labels as model"),
            ({"gate": "clean_accuracy > 0"}, TEXTS, "invalid_spec", "must compare perplexity_rat"),
            ({}, ["good film", "good"], "invalid_text", "Text 1 holds fewer than two tokens"),
        ):
            sent = {"spec": json.dumps(spec | changes), "texts": json.dumps(texts)}
            check_error(front.post([], **sent), 422, code, message)
        gate = {"gate": "perplexity_ratio <= 100"}
        answer = front.post([], spec=json.dumps(spec | gate), texts=json.dumps(TEXTS))
        assert answer.status_code == 202, answer.text
        job = front.run_all()[answer.json()["id"]]
        assert job.status == "succeeded" and job.result is not None, job
        [model] = job.result["models"]
        assert job.result["metric"] == "token accuracy" and job.result["gate"]["passed"]
        assert model["clean"]["perplexity"] > 1 and model["largest"]["ratio"] > 0
        page = front.request("GET", f"{answer.headers['location']}/report.html")
        assert "perplexity" in page.text


def test_the_difference_of_two_texts_is_found_word_by_word() -> None:
    signs = {"same": "", "del": "-", "ins": "+"}
    for old, new, expected in [
        ("one two three", "one 2 three four", "one |-two|+2| three|+ four"),
        ("a b", "a b", "a b"),
        ("a", "b c", "-a|+b c"),
        ("the end", "the", "the|- end"),
    ]:
        found = difference(old, new)
        assert "|".join(signs[kind] + text for kind, text in found) == expected


def sent(*texts: object, **more: Any) -> dict[str, Any]:
    return {"texts": json.dumps(texts), **more}


def filed(content: bytes, **more: Any) -> dict[str, Any]:
    return {"files": archive(content), **more}


FGSM = '{"attacks": [{"name": "fgsm", "eps": ["0.1"]}]}'
MIXED = '{"attacks": [{"name": "typos"}, {"name": "fgsm", "eps": ["0.1"]}]}'
OF_IMAGES = '{"model": "fashion-dot", "attacks": [{"name": "typos"}]}'
QUERIES = '{"attacks": [{"name": "typos", "queries": 20001}]}'
RATES = json.dumps({"attacks": [{"name": "word-swap", "rate": [i / 20 for i in range(1, 18)]}]})
EDITS = json.dumps({"attacks": [{"name": "hotflip", "edits": list(range(1, 18))}]})
# Rows that share a value, which the file and the memory hold once.
SHARED = pa.DictionaryArray.from_arrays(pa.array([0] * 2000), pa.array(["a " * 100_000]))
# what is sent: status, code, part of the message
BAD_TEXTS: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "none": ({}, 422, "no_texts", "send some in `texts` or one csv or parquet"),
    "empty list": (sent(), 422, "no_texts", "at least one"),
    "not a list": ({"texts": '"good"'}, 422, "invalid_texts", "JSON list"),
    "not JSON": ({"texts": "good"}, 400, "invalid_json", "texts"),
    "a number": (sent("good", 1), 422, "invalid_text", "Text 1 must be a string"),
    "blanks": (sent("good", " "), 422, "invalid_text", "Text 1 .* blanks"),
    "half a surrogate": (sent("\ud800"), 422, "invalid_text", "Text 0 .* Unicode"),
    "nothing to read": (sent("good", "\u200b"), 422, "invalid_text", "Text 1 .* reads"),
    "too long": (sent("good " * 20_001), 413, "text_too_long", "Text 0 has 100,005 .* 100,000"),
    "late start": (sent("\u200b" * 500 + "a"), 422, "invalid_text", "Text 0 .* first 500 char"),
    "many lists": ({"texts": f"[{'[],' * 10_000}1]"}, 413, "body_too_large", "`texts`.*20,000"),
    "large": (sent(*["a " * 10_000] * 101), 413, "body_too_large", "`texts` .* 2 MB"),
    "too many": (sent(*["good"] * 2001), 422, "too_many_texts", "2001 .* 2000"),
    "long csv": (filed(b"text\n" + b"a\n" * 2001), 422, "too_many_texts", "More than 2000"),
    "blank csv": (filed(b"text\na\n" + b"\n" * 200_000), 413, "archive_too_large", "200,000 lines"),
    "wide csv": (filed(b"text" + b"," * 100), 413, "archive_too_large", "100 columns"),
    "endless row": (
        filed(b'text\n"' + b"aaa\n" * 150_000),
        413,
        "text_too_long",
        "Row 1 .* 400,000",
    ),
    "long text in csv": (
        filed(b"text\na\n" + b"a" * 150_000),
        413,
        "text_too_long",
        "Text 1 has 150",
    ),
    "long parquet": (filed(parquet(text=["a"] * 2001)), 422, "too_many_texts", "2001 .* 2000"),
    "one long text again": (filed(parquet(text=SHARED)), 413, "archive_too_large", "256"),
    "csv without texts": (filed(b"a,b\n1,2\n"), 422, "invalid_archive", "'text'"),
    "csv of bytes": (filed(b"text\n\xff\n"), 422, "invalid_archive", "UTF-8"),
    "another label": (filed(b"text,label\na,Bag\n"), 422, "class_mismatch", "line 2.*Bag"),
    "numbers": (filed(parquet(text=[1])), 422, "invalid_archive", "must hold strings"),
    "zip": (filed(zipped({"a.txt": b"a"})), 415, "not_an_archive", "csv or parquet"),
    "both": (filed(ROWS, texts='["good"]'), 422, "ambiguous_texts", "either"),
    "images": ({"files": pictures(1)}, 422, "wrong_inputs", "'typos' works on .* `texts`"),
    "for images": (sent("good", spec=FGSM), 422, "wrong_inputs", "0.name: 'fgsm' works on images"),
    "both kinds": ({"spec": MIXED}, 422, "invalid_spec", "must all be on images or all"),
    "model of images": (sent("good", spec=OF_IMAGES), 422, "wrong_task", "fashion-dot"),
    "queries": (sent("a", spec=QUERIES), 422, "invalid_spec", "0.queries: 20001 .* 20000"),
    "rates": (sent("a", spec=RATES), 422, "invalid_spec", "0.rate: 17 values .* 16"),
    "edits": (sent("a", spec=EDITS), 422, "invalid_spec", "0.edits: 17 values .* 16"),
    "few labels": (sent("good", labels="[0, 1]"), 422, "labels_length", "2 labels"),
}


@pytest.mark.parametrize("case", BAD_TEXTS)
def test_bad_texts_are_refused_and_leave_nothing(untouched: Front, case: str) -> None:
    form, status, code, message = BAD_TEXTS[case]
    check_error(post(untouched, **form), status, code, message)
    assert untouched.folders() == []


def test_texts_are_part_of_what_a_key_stands_for(front: Front) -> None:
    first = post(front, texts='["good"]', key="k")
    assert post(front, texts='["good"]', key="k").json()["id"] == first.json()["id"]
    check_error(post(front, texts='["bad"]', key="k"), 409, "idempotency_conflict", "another")


def test_the_list_leaves_tables_of_words_out(front: Front) -> None:
    attack = {"name": "thesaurus", "edits": [1], "queries": 5, "table": {"good": ["bad"]}}
    answer = post(front, texts='["good"]', spec=json.dumps({"attacks": [attack]}))
    url = "/v1/evaluations"
    [listed] = front.request("GET", url).json()["evaluations"][:1]
    alone = front.request("GET", f"{url}/{answer.json()['id']}").json()
    assert listed["id"] == alone["id"]
    assert alone["spec"]["attacks"][0]["table"] == {"good": ["bad"]}
    assert "table" not in listed["spec"]["attacks"][0]
    assert listed["spec"]["attacks"][0]["name"] == "thesaurus"


def test_every_attack_on_texts_runs_to_its_report(front: Front) -> None:
    settings: dict[str, dict[str, Any]] = {
        "word-swap": {"rate": ["0.5"]},
        "hotflip": {"edits": [1, 2], "queries": 20},
        "typos": {"edits": [2], "queries": 20},
        "charmer": {"edits": [1], "queries": 20},
        "thesaurus": {"edits": [1], "queries": 20, "table": {"good": ["bad"]}},
    }
    facts = {name: kind.info for name, kind in ATTACKS.items()}
    known = {
        name
        for name, info in facts.items()
        if (info.input, info.role) == ("text", "attack") and info.access != "token-wise"
    }
    assert set(settings) == known
    spec = {"attacks": [{"name": name, **given} for name, given in settings.items()]}
    form = {"texts": json.dumps(TEXTS), "spec": json.dumps(spec)}
    location = post(front, **form).headers["location"]
    front.run_all()
    shown = front.request("GET", location).json()
    assert shown["status"] == "succeeded", shown["error"]
    attacks = shown["result"]["models"][0]["attacks"]
    assert {attack["name"] for attack in attacks} == known and len(attacks) == len(known) + 1
    sample = front.request("GET", f"{location}/samples/1.json?attack=word-swap").json()
    assert sample["clean"]["text"] == TEXTS[1] and sample["label"] is None
    assert sample["adversarial"]["text"].split().count("AAA") == 2
    assert sample["adversarial"]["distance"] == 2
    for kind, which in (("del", "clean"), ("ins", "adversarial")):
        kept = "".join(text for change, text in sample["changes"] if change in ("same", kind))
        assert kept == sample[which]["text"]
    assert front.request("GET", f"{location}/samples/0.json").json()["index"] == 0
    for wrong in ("3.json", "x.json", "0.json?attack=pgd", "0.json?eps=7", "0/clean.png"):
        check_error(front.request("GET", f"{location}/samples/{wrong}"), 404, "no_such_sample", "")
    page = front.request("GET", shown["links"]["html"])
    assert page.status_code == 200 and "tiny-transject" in page.text
