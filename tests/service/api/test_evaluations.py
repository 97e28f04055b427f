import asyncio
import io
import json
import random
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data.images import decode_image
from data.sets import Origin
from robustness import EvaluationSpec, cost
from robustness.report import lookup
from runtimes.artifact import Artifact
from service.jobs.uploads import open_inputs
from tests.service.conftest import bomb
from tests.service.front import FGSM, PNG, URL, Front, archive, check_error, pictures, zipped
from tests.service.tiny_artifact import LABELS, noise


def stored_labels(front: Front, response: httpx.Response) -> list[int] | None:
    assert response.status_code == 202, response.text
    labels = open_inputs(front.folder(response.json()["id"]), LABELS).labels
    return None if labels is None else labels.tolist()


def zip64(members: int) -> bytes:
    """An archive whose plain record of its end tells of fewer entries than its zip64 record."""
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 20, 0, 0, 0, 33, 0, 0, 0, 60, *[0] * 6)
    entries = entry.ljust(106, b"x") * members
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, members, members, len(entries), 0)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, len(entries), 1)
    return entries + end + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, 106, 0, 0)


def spec(**changes: Any) -> dict[str, Any]:
    return {"spec": json.dumps(FGSM | changes)}


def limited(name: str, **options: Any) -> dict[str, Any]:
    return spec(attacks=[{"name": name, "eps": ["0.1"], **options}])


def image(content: bytes) -> dict[str, Any]:
    return {"files": [("images", ("a.png", content))]}


def packed(name: str = "a.png", content: bytes = PNG, **attributes: Any) -> dict[str, Any]:
    return {"files": archive(zipped({name: content}, **attributes))}


def many(count: int, content: bytes = b"", name: str = "{}.png") -> dict[str, Any]:
    members = {name.format(index): content for index in range(count)}
    return {"files": archive(zipped(members, compress_type=zipfile.ZIP_DEFLATED))}


def parquet(*rows: bytes, metadata: bytes = b"{}") -> bytes:
    stream = io.BytesIO()
    table = pa.table({"image": list(rows), "label": [0] * len(rows)})
    pq.write_table(table.replace_schema_metadata({"huggingface": metadata}), stream)
    return stream.getvalue()


TWICE = zipped({"a.png": PNG, "b.png": PNG}).replace(b"b.png", b"a.png")
WHOLE = zipped({"a.png": PNG})
LATER = WHOLE.replace(b"PK\1\2\x14\3\x14", b"PK\1\2\x14\3\x63")
ELSEWHERE = WHOLE[:-6] + struct.pack("<L", 0xFFFFFFF0) + WHOLE[-2:]
NAMELESS = WHOLE.replace(b"a.png", b"").replace(b"\5\0\0\0", b"\0\0\0\0")
DEEP = parquet(PNG, metadata=b"[" * 20_000 + b"]" * 20_000)
MANY_CLASSES = {"info": {"features": {"label": {"names": ["a"] * 30_001}}}}
OTHER_NAMES = {"info": {"features": {"label": {"names": ["x", "y", "z"]}}}}
DAMAGED = WHOLE.replace(b"IDAT", b"IDOT")
MANY = [f"{i}/255" for i in range(1, 18)]
NAN = '{"attacks": [{"name": "fgsm", "eps": [NaN]}]}'
LINK = {"content": b"/etc/passwd", "external_attr": stat.S_IFLNK << 16}
# what is sent: status, code, part of the message
BAD_REQUESTS: dict[str, tuple[dict[str, Any] | Callable[[], dict[str, Any]], int, str, str]] = {
    "no file": ({"files": []}, 422, "no_images", "no image"),
    "half a png": (image(PNG[:60]), 422, "broken_image", "a.png: the image data is broken"),
    "text as image": (image(b"hello"), 415, "not_an_image", "a.png: not an image"),
    "too many pixels": (image(bomb(7_400, 7_400)), 413, "too_many_pixels", "a.png"),
    # Only whoever decodes it learns that it is broken.
    "as many as allowed": (image(bomb(7_000, 7_000)), 422, "broken_image", "a.png"),
    "address": ({"files": [], "images": "http://a/a.png"}, 415, "not_a_file", "never fetched"),
    "too many images": ({"files": image(PNG)["files"] * 2001}, 422, "too_many_images", "2000"),
    "two kinds": ({"files": [*pictures(1), *archive(b"PK")]}, 422, "ambiguous_images", "either"),
    "no spec": ({"spec": None}, 422, "no_spec", "spec"),
    "unknown field": ({"text": "[]"}, 422, "unknown_field", "text"),
    "bare NaN": ({"spec": NAN}, 400, "invalid_json", "NaN is not JSON"),
    "long spec": ({"spec": " " * 1_000_001}, 413, "body_too_large", "`spec` .* 1 MB"),
    "wide spec": ({"spec": "[" + "[]," * 5000 + "1]"}, 413, "body_too_large", "20,000 items"),
    "long key": (spec(**{"x" * 900_000: 1}), 422, "invalid_spec", "unknown key 'x{40}'"),
    "spec is a list": ({"spec": "[]"}, 422, "invalid_spec", "dictionary"),
    "unknown key": (spec(sede=1), 422, "invalid_spec", "did you mean 'seed'\\?$"),
    "unknown model": (spec(model="no"), 404, "unknown_model", "'no'"),
    "itself": (spec(compare_with="fashion-elliptical"), 422, "invalid_spec", "another model"),
    "steps": (limited("pgd", steps=1001), 422, "invalid_spec", "0.steps: 1001 .* 1000 allowed"),
    "samples": (limited("spsa", samples=2049), 422, "invalid_spec", "0.samples: 2049 dir.* 2048"),
    "radii": (limited("autoattack", eps=MANY), 422, "invalid_spec", "0.eps: 17 radii .* 16"),
    "few classes": (limited("apgd-t"), 422, "invalid_spec", "0.name: .*at least 4 .* has 3"),
    "few labels": ({"files": pictures(3), "labels": "[0, 1]"}, 422, "labels_length", "2 .* 3"),
    "label out of range": ({"labels": "[3]"}, 422, "invalid_labels", "Label 0.*out of range"),
    "negative label": ({"labels": "[-1]"}, 422, "invalid_labels", "Label 0"),
    "true as label": ({"labels": "[true]"}, 422, "invalid_labels", "Label 0"),
    "unknown label": ({"labels": '["Sock"]'}, 422, "class_mismatch", "Label 0: 'Sock'"),
    "labels in an object": ({"labels": '{"a.png": 0}'}, 422, "invalid_labels", "JSON list"),
    "long labels": ({"labels": " " * 11_000 + "[0]"}, 413, "body_too_large", "`labels`"),
    "many labels": ({"labels": "[" + "0," * 1100 + "0]"}, 413, "body_too_large", "1,001 items"),
    "csv of another file": ({"labels": "b.png,0"}, 422, "invalid_labels", "'a.png'"),
    "csv of three columns": ({"labels": "a.png,0,1"}, 422, "invalid_labels", "file,label"),
    "hostile key": ({"key": "a b"}, 422, "invalid_idempotency_key", "visible"),
    "text as archive": ({"files": archive(b"hello")}, 415, "not_an_archive", "neither"),
    "half a zip": ({"files": archive(DAMAGED[:-30])}, 422, "broken_archive", "incomplete"),
    "damaged": ({"files": archive(DAMAGED)}, 422, "broken_archive", "damaged at 'a.png'"),
    "zip without image": (packed("a.txt"), 422, "invalid_archive", "no image"),
    "unknown class": (packed("Sock/a.png"), 422, "class_mismatch", "data: Sock; of the model: Ank"),
    "wrong map": (spec(class_map=["Sock"]), 422, "invalid_spec", 'class_map must be "index"'),
    "traversal": (packed("../a.png"), 422, "unsafe_archive", "no plain file"),
    "absolute path": (packed("/etc/a.png"), 422, "unsafe_archive", "no plain file"),
    "symbolic link": (packed(**LINK), 422, "unsafe_archive", "no plain file"),
    "one name twice": ({"files": archive(TWICE)}, 422, "unsafe_archive", "of the same name"),
    "lzma": (packed(compress_type=zipfile.ZIP_LZMA), 422, "unsafe_archive", "unusual way"),
    "bomb": (lambda: many(9, b"\0" * 2**25), 413, "archive_too_large", "256"),
    "zip of too many": (many(2001), 422, "too_many_images", "2001"),
    "endless list": (many(1100, name="x" * 2000 + "{}/"), 413, "archive_too_large", "many files"),
    "zip64": ({"files": archive(zip64(40_000))}, 413, "archive_too_large", "too many files"),
    "of a later version": ({"files": archive(LATER)}, 422, "broken_archive", "zip file cannot"),
    "directory elsewhere": ({"files": archive(ELSEWHERE)}, 422, "broken_archive", "cannot"),
    "no name": ({"files": archive(NAMELESS)}, 422, "broken_archive", "zip file cannot"),
    "deep metadata": ({"files": archive(DEEP)}, 422, "broken_archive", "archive cannot"),
    "classes": (
        {"files": archive(parquet(PNG, metadata=json.dumps(MANY_CLASSES).encode()))},
        *(422, "invalid_archive", "at most 30000 names"),
    ),
    "half a parquet": ({"files": archive(b"PAR1half")}, 422, "broken_archive", "parquet"),
}


@pytest.mark.parametrize("case", BAD_REQUESTS)
def test_a_bad_request_is_refused_and_leaves_nothing(untouched: Front, case: str) -> None:
    form, status, code, message = BAD_REQUESTS[case]
    check_error(untouched.post(**(form() if callable(form) else form)), status, code, message)
    assert untouched.folders() == []
    assert untouched.store.page() == ([], None)


def test_broken_bytes_of_archives_are_never_our_fault(front: Front) -> None:
    rng = random.Random(0)
    plain = zipped({"Bag/a.png": PNG, "Bag/b.png": PNG})
    packed = zipped({"Bag/a.png": PNG * 4}, compress_type=zipfile.ZIP_DEFLATED)
    for whole in [plain, packed, parquet(PNG, PNG)] * 40:
        content = bytearray(whole)
        # Half of them where the list of contents is.
        start = rng.choice([0, len(content) * 2 // 3])
        for _ in range(rng.choice([1, 1, 4])):
            content[rng.randrange(start, len(content))] = rng.choice([0, 1, 99, 127, 128, 255])
        answer = front.post(archive(bytes(content)))
        assert answer.status_code in (202, 413, 415, 422, 429), answer.text
        if answer.status_code == 202:
            front.request("DELETE", answer.headers["location"])


def test_every_broken_rule_and_limit_is_listed(front: Front) -> None:
    def fields(*attacks: dict[str, Any]) -> list[str]:
        details = check_error(front.post(**spec(attacks=attacks)), 422, "invalid_spec", "")
        return [problem["field"] for problem in details]

    found = fields({"name": "fgsm", "eps": ["2"]}, {"name": "no", "eps": []})
    assert {"attacks.0.eps", "attacks.1.name"} <= set(found)
    allowed = [{"name": "fgsm", "eps": [eps]} for eps in MANY[:15]]
    pgd = {"name": "pgd", "eps": ["0.1"], "steps": 1001}
    square = {"name": "square", "eps": ["0.1"], "queries": 20_001}
    expected = ["attacks", "attacks.15.steps", "attacks.16.queries"]
    assert fields(*allowed, pgd, square) == expected


def test_no_more_rules_are_listed_than_anyone_reads(front: Front) -> None:
    bad = [{"name": "fgsm", "eps": ["2"]}] * 300
    deep = [{"name": "pgd", "eps": [f"{i}/1000"], "steps": 2000} for i in range(1, 200)]
    for attacks in (bad, deep):
        refused = front.request(
            "POST", f"{URL}/cost", json={"spec": {"attacks": attacks}, "samples": 1}
        )
        assert len(check_error(refused, 422, "invalid_spec")) == 16
    for body in ("[" + "[]," * 9000 + "1]", f'"{"a" * 1_000_000}"'):
        headers = {"content-type": "application/json"}
        refused = front.request("POST", f"{URL}/cost", content=body, headers=headers)
        check_error(refused, 413, "body_too_large")


def test_cost_is_that_of_the_models_classes_and_has_a_limit(
    tmp_path: Path, artifacts: dict[str, Artifact]
) -> None:
    attacks = [{"name": "autoattack", "eps": ["8/255"]}, {"name": "smoothing", "samples": 100_000}]
    expected = cost(EvaluationSpec.model_validate({"attacks": attacks}), 2, [True], num_classes=3)
    front = Front(tmp_path, artifacts, evaluation_max_cost=expected)
    accepted = front.post(pictures(2), **spec(attacks=attacks))
    assert accepted.json()["cost"]["model_evaluations"] == expected
    refused = front.post(pictures(3), **spec(attacks=attacks))
    details = check_error(refused, 422, "too_expensive", f"more than the {expected:,} allowed")
    assert details["limit"] == expected < details["model_evaluations"]
    assert front.folders() == [accepted.json()["id"]]
    front.close()


def test_an_accepted_evaluation_has_its_files_and_says_what_it_costs(front: Front) -> None:
    response = front.post(pictures(3), spec=json.dumps(FGSM | {"compare_with": "fashion-dot"}))
    body = response.json()
    assert response.status_code == 202
    assert response.headers["location"] == f"{URL}/{body['id']}"
    # 3 images x (2 on clean + 2 gradients x 4 for the elliptical, 2 + 4 for the plain model), and
    # what the two models are asked about themselves
    expected = 48 + 2 * EvaluationSpec.model_validate(FGSM).diagnostics_cost(3)
    unknown = dict.fromkeys(("queries", "amount", "seconds"))
    assert body["cost"] == {"model_evaluations": expected} | unknown
    assert front.folders() == [body["id"]]
    own = response.headers["location"]
    shown = front.request("GET", own).json()
    links = dict.fromkeys(("report", "html", "junit", "card", "samples", "csv"))
    assert shown.pop("spec")["model"] == "fashion-elliptical" and shown.pop("created")
    assert [model["name"] for model in shown.pop("models")] == ["fashion-elliptical", "fashion-dot"]
    nothing = dict.fromkeys(("started", "finished", "result", "error", "outcome"))
    assert shown == nothing | {
        "id": body["id"],
        "status": "queued",
        "owner": "",
        "priority": "normal",
        "queue_position": 1,
        "model": "fashion-elliptical",
        "compare_with": "fashion-dot",
        "samples": 3,
        "cancel_requested": False,
        "continuable": False,
        "progress": {"done": 0, "total": expected, "stage": "", "eta_s": None},
        "links": {"self": own, "events": f"{own}/events", **links},
    }


SEARCHES = {
    "": 2, "nightly": 1, "fgsm": 2, "Elliptical": 2, "imdb": 0, "über 50": 1, "50 %": 1, "5%": 0,
    "t_": 0, "_50": 1, "\\": 1, '"quoted"': 1, "line": 1,
}  # fmt: skip


def test_list_is_searched_by_name_note_model_and_attack(front: Front) -> None:
    named = spec(name='Nightly, über 50 %, "quoted"', note="a\\b_50 in two\nlines")
    for fields in (named, {}):
        assert front.post(**fields).status_code == 202
    for search, number in SEARCHES.items():
        listed = front.request("GET", URL, params={"search": search}).json()["evaluations"]
        assert len(listed) == number, search


def test_labels_come_as_json_or_csv_by_index_or_name(front: Front) -> None:
    for labels in (
        "[2, 0, 1]",
        '["T-shirt/top", "ankle boot", "Bag"]',
        "2.png,1\n0.png,T-shirt/top\n1.png,Ankle boot\n",
        "file,label\r\n0.png,2\r\n1.png,0\r\n2.png,bag\r\n",
    ):
        assert stored_labels(front, front.post(pictures(3), labels=labels)) == [2, 0, 1]
    files = [("spec", ("s.json", json.dumps(FGSM).encode())), ("labels", ("l.csv", b"a.png,Bag"))]
    sent = front.request("POST", URL, files=[*files, ("images", ("a.png", PNG))])
    assert stored_labels(front, sent) == [1]


def test_archives_bring_their_labels(front: Front) -> None:
    members = {"some/Bag/1.png": PNG, "some/ankle-boot/2.png": PNG, "some/.DS_Store": b"x"}
    assert stored_labels(front, front.post(archive(zipped(members)))) == [1, 0]
    assert stored_labels(front, front.post(archive(zipped({"1.png": PNG})))) is None
    stream = io.BytesIO()
    rows = pa.table({"image": [{"bytes": PNG, "path": None}] * 2, "label": [1, 2]})
    pq.write_table(rows, stream)
    assert stored_labels(front, front.post(archive(stream.getvalue()))) == [1, 2]


SHOES = zipped({"Shoe/1.png": PNG, "bag/2.png": PNG})
OTHERS = parquet(PNG, metadata=json.dumps(OTHER_NAMES).encode())


@pytest.mark.parametrize(
    ("content", "class_map", "expected"),
    [
        (SHOES, None, {"data": ["Shoe", "bag"], "model": LABELS}),
        (SHOES, {"shoe": "ankle_boot"}, ([0, 1], ["Shoe", "bag"])),
        (OTHERS, None, {"data": ["x", "y", "z"], "model": LABELS}),
        (OTHERS, "index", ([0], ["x", "y", "z"])),
        (OTHERS, {"x": "bag"}, ([1], ["x", "y", "z"])),
    ],
)
def test_classes_of_an_archive_are_the_models_or_mapped_or_refused(
    front: Front, content: bytes, class_map: Any, expected: Any
) -> None:
    sent = front.post(archive(content), **spec(class_map=class_map))
    if isinstance(expected, dict):
        message = "Classes of the data: .*; of the model: .* `class_map` in the spec says which"
        assert check_error(sent, 422, "class_mismatch", message) == expected
        return
    assert stored_labels(front, sent) == expected[0]
    found = open_inputs(front.folder(sent.json()["id"]), LABELS)
    assert found.origin == Origin(name="some.bin", source="uploaded", classes=expected[1])


def test_a_key_and_a_body_stand_for_one_evaluation(front: Front) -> None:
    async def conversation(client: httpx.AsyncClient) -> list[httpx.Response]:
        parts = {"spec": (None, json.dumps(FGSM)), "images": ("a.png", PNG)}
        headers = {"Idempotency-Key": "k"}
        posts = [client.post(URL, files=parts, headers=headers) for _ in range(8)]
        return await asyncio.gather(*posts)

    answers = [*front.talk(conversation), front.post(key="k")]
    assert {(answer.status_code, answer.json()["id"]) for answer in answers} == {
        (202, id) for id in front.folders()
    }
    replayed = [answer.headers.get("idempotency-replayed") for answer in answers]
    assert (replayed.count(None), replayed.count("true")) == (1, 8)
    check_error(front.post(key="k", labels="[0]"), 409, "idempotency_conflict", "another request")
    assert len(front.folders()) == 1


def test_the_list_has_pages(front: Front) -> None:
    ids = [front.post().json()["id"] for _ in range(3)]
    page = front.request("GET", URL, params={"limit": 2}).json()
    assert [e["id"] for e in page["evaluations"]] == ids[:0:-1]
    rest = front.request("GET", URL, params={"cursor": page["next_cursor"]}).json()
    assert [e["id"] for e in rest["evaluations"]] == ids[:1] and rest["next_cursor"] is None
    front.request("DELETE", f"{URL}/{ids[0]}")
    cancelled = front.request("GET", URL, params={"status": "cancelled"}).json()
    assert [e["id"] for e in cancelled["evaluations"]] == ids[:1]


def test_a_bad_query_is_refused(front: Front) -> None:
    own = front.post().headers["location"]
    for method, url, message in [
        *[("GET", f"{URL}?limit={value}", "limit") for value in ("0", "101", "x")],
        ("GET", f"{URL}?cursor=-1", "cursor"),
        ("GET", f"{URL}?status=no", "status"),
        *[("GET", f"{own}?wait={value}", "wait") for value in ("31", "-1", "nan", "")],
        ("GET", f"{URL}?limits=3", "limit, cursor, status, model, owner"),
        ("GET", f"{URL}?limit=3&limit=4", "once"),
        ("GET", f"{URL}?model=%00", "printable"),
        ("POST", f"{URL}?priority=high", "not known here"),
        ("POST", f"{URL}/cost?x=1", "not known here"),
        ("GET", f"{own}?wait_s=3", "known: wait"),
        ("DELETE", f"{own}?force=1", "not known here"),
        ("GET", f"{own}/events?wait=1", "not known here"),
        ("GET", f"{own}/report.json?x", "not known here"),
        ("GET", f"{own}/samples/0/clean.png?epsilon=1", "attack, eps, model"),
        ("GET", f"{own}/samples/0.json?index=1", "attack, eps, model"),
    ]:
        check_error(front.request(method, url), 422, "invalid_query", message)


def test_waiting_ends_with_the_evaluation_and_blocks_nobody(front: Front) -> None:
    location = front.post().headers["location"]

    async def conversation(client: httpx.AsyncClient) -> tuple[httpx.Response, httpx.Response]:
        waiting = asyncio.create_task(client.get(f"{location}?wait=30"))
        await asyncio.sleep(0.3)
        meanwhile = await client.get(location)
        assert not waiting.done()
        await client.delete(location)
        return meanwhile, await waiting

    meanwhile, waited = front.talk(conversation)
    assert meanwhile.json()["status"] == "queued"
    assert waited.json()["status"] == "cancelled"


def test_cancel_then_delete_then_gone(front: Front) -> None:
    location = front.post(key="k").headers["location"]
    cancelled = front.request("DELETE", location)
    assert cancelled.status_code == 202 and cancelled.json()["status"] == "cancelled"
    assert front.request("DELETE", location).status_code == 204
    assert front.folders() == []
    for method in ("GET", "DELETE"):
        check_error(front.request(method, location), 410, "evaluation_deleted", "deleted")
    check_error(front.request("GET", f"{location}/report.json"), 410, "evaluation_deleted", "")
    assert front.request("GET", URL).json()["evaluations"] == []
    assert front.post(key="k").headers["location"] != location


def test_a_running_evaluation_is_only_asked_to_stop(front: Front) -> None:
    location = front.post().headers["location"]
    front.store.claim("w")
    response = front.request("DELETE", location)
    assert response.status_code == 202
    assert response.json() == response.json() | {"status": "running", "cancel_requested": True}


def test_a_finished_evaluation_shows_result_report_and_pictures(front: Front) -> None:
    spec = json.dumps(FGSM | {"compare_with": "fashion-dot", "gate": "robust_accuracy >= 0"})
    hostile = "<img src=x onerror=alert(1)>.png"
    files = [("images", (hostile, content)) for _, (_, content) in pictures(5)]
    location = front.post(files, spec=spec, labels="[0, 1, 2, 0, 1]").headers["location"]
    front.run_all()
    # The report holds what it shows of the images.
    kept = [path.name for path in front.folder(location.rpartition("/")[2]).iterdir()]
    assert sorted(kept) == ["inputs.json", "report"]
    shown = front.request("GET", f"{location}?wait=30").json()
    assert shown["status"] == "succeeded", shown["error"]
    names = [model["name"] for model in shown["result"]["models"]]
    assert names == ["fashion-elliptical", "fashion-dot"]
    report = front.request("GET", shown["links"]["report"]).json()
    assert report["summary"] == shown["result"]
    outcome = front.request("GET", URL).json()["evaluations"][0]["outcome"]
    assert [model["name"] for model in outcome["models"]] == names
    assert outcome["models"][1]["largest"] == report["summary"]["models"][1]["largest"]
    # Random models are right by chance: whatever their figures, no gate holds.
    assert outcome["gate"] == report["summary"]["gate"] and not outcome["gate"]["passed"]
    assert "not_above_chance" in [each["code"] for each in report["summary"]["warnings"]]
    assert [sample["name"] for sample in report["samples"]] == [hostile] * 5
    for kind in ("clean", "adversarial", "perturbation"):
        for query in ("", "?attack=fgsm&eps=8/255&model=fashion-dot"):
            picture = front.request("GET", f"{location}/samples/4/{kind}.png{query}")
            assert picture.status_code == 200, picture.text
            assert picture.headers["content-type"] == "image/png"
            assert picture.headers["cache-control"] == "private, no-cache"
            assert picture.content.startswith(b"\x89PNG")
    picture = front.request("GET", f"{location}/samples/1/clean.png")
    assert (np.asarray(decode_image(picture.content)) == noise(5)[1]).all()
    for path in ("5/clean.png", "x/clean.png", "0/other.png"):
        response = front.request("GET", f"{location}/samples/{path}")
        check_error(response, 404, "no_such_sample", "")
    again = front.post(files, spec=spec, labels="[0, 1, 2, 0, 1]").json()
    assert again["cost"]["seconds"] > 0
    kept_in_memory = [path for path in lookup._parsed if shown["id"] in str(path)]
    assert len(kept_in_memory) == 1
    assert front.request("DELETE", location).status_code == 204
    assert front.folders() == [again["id"]]
    assert not set(kept_in_memory) & set(lookup._parsed)
