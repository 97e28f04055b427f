"""The files of a finished evaluation, and the kinds of attacks that it may hold."""

import io
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow.parquet as pq
import pytest

from data.images import to_png
from robustness.spec import ATTACKS
from runtimes.artifact import open_artifact
from service.settings import ROOT
from tests.service.front import URL, Front, check_error
from tests.service.tiny_artifact import noise

SETTINGS: dict[str, dict[str, Any]] = {
    "fgsm": {},
    "pgd": {"steps": 2},
    "apgd-ce": {"steps": 3, "norm": "L2", "eps": ["2"]},
    "apgd-t": {"steps": 3},
    "fab-t": {"steps": 3},
    "ddn": {"steps": 3, "eps": ["2"]},
    "fmn": {"steps": 3},
    "pdpgd": {"steps": 3},
    "sigma-zero": {"steps": 3, "eps": ["40"]},
    "square": {"queries": 10},
    "hopskipjump": {"queries": 40},
    "rays": {"queries": 20},
    "autoattack": {},
    "screen": {},
    "spsa": {"steps": 2, "samples": 8},
    "sparse-rs": {"queries": 20, "eps": ["40"]},
    "patch-rs": {"queries": 20, "patch": [8]},
    "patch-fool": {"steps": 2},
    "corruptions": {"names": ["fog", "saturate"], "severities": [3]},
    "smoothing": {"sigma": ["0.25"], "samples": 20},
    "torchattacks": {"attack": "MIFGSM", "params": {"steps": 3}},
}
Finished = tuple[Front, dict[str, Any]]
FORMS = {
    "report": ("report.json", "application/json", "attachment"),
    "html": ("report.html", "text/html; charset=utf-8", "inline"),
    "junit": ("report.junit.xml", "application/xml", "attachment"),
    "card": ("card.md", "text/markdown; charset=utf-8", "attachment"),
    "samples": ("samples.parquet", "application/vnd.apache.parquet", "attachment"),
    "csv": ("samples.csv", "text/csv; charset=utf-8", "attachment"),
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Finished]:
    """A shipped model after every attack on images."""
    shipped = open_artifact(ROOT / "artifacts" / "fashion-elliptical")
    state = tmp_path_factory.mktemp("state")
    front = Front(state, {"fashion-elliptical": shipped}, evaluation_max_attacks=len(SETTINGS))
    # A radius at which nearly every image falls at once, so that the longest attacks end early.
    radius = {"eps": ["64/255"]}
    attacks = [
        {"name": name, **(radius if ATTACKS[name].info.norms else {}), **given}
        for name, given in SETTINGS.items()
    ]
    images = [to_png(image[None] / 255) for image in noise(3, size=28)]
    files = [("images", (f"{i}.png", image)) for i, image in enumerate(images)]
    response = front.post(files, spec=json.dumps({"attacks": attacks}))
    assert response.status_code == 202, response.text
    front.run_all()
    yield front, front.request("GET", response.headers["location"]).json()
    front.close()


def test_every_attack_on_images_runs_to_its_report(finished: Finished) -> None:
    on_images = {
        name: kind.info
        for name, kind in ATTACKS.items()
        if kind.info.input == "image" and "class" in kind.info.answers
    }
    assert set(SETTINGS) == {name for name, info in on_images.items() if info.role != "proof"}
    _, shown = finished
    assert shown["status"] == "succeeded", shown["error"]
    assert shown["progress"]["done"] == shown["progress"]["total"]
    model = shown["result"]["models"][0]
    attacking = [name for name in SETTINGS if ATTACKS[name].info.role == "attack"]
    assert [found["name"].split(":")[0] for found in model["attacks"]] == attacking
    assert [found["name"] for found in model["corruptions"]] == ["fog", "saturate"]
    assert [found["sigma"] for found in model["certificates"]] == ["0.25"]
    assert set(model["worst"]) == {"64/255", "L2:2", "L0:40", "patch:8", "patches:1"}


def test_each_form_has_its_type_and_nothing_runs_in_the_page(finished: Finished) -> None:
    front, shown = finished
    folder = front.folder(shown["id"])
    assert {path.name for path in folder.iterdir()} == {"inputs.json", "report"}
    kept = {"shards", *(name for name, *_ in FORMS.values())}
    assert {path.name for path in (folder / "report").iterdir()} == kept
    for link, (name, media_type, disposition) in FORMS.items():
        response = front.request("GET", shown["links"][link])
        assert response.status_code == 200
        assert response.headers["content-type"] == media_type
        own = f"assay-fashion-elliptical-{shown['id'][:8]}-{name}"
        assert response.headers["content-disposition"] == f'{disposition}; filename="{own}"'
        assert response.headers["cache-control"] == "private, no-cache"
        assert response.content == (folder / "report" / name).read_bytes()
    content = {link: front.request("GET", shown["links"][link]).content for link in FORMS}
    assert pq.read_table(io.BytesIO(content["samples"])).num_rows >= 3
    assert ElementTree.fromstring(content["junit"]).tag in ("testsuite", "testsuites")
    assert shown["models"][0]["digest"][:12] in content["card"].decode()
    page = front.request("GET", shown["links"]["html"])
    parts = page.headers["content-security-policy"].split("; ")
    policy = {name: rest for name, _, rest in (part.partition(" ") for part in parts)}
    assert policy["default-src"] == "'none'" and "script-src" not in policy
    assert policy["style-src"] == "'unsafe-inline'" and policy["img-src"] == "data:"
    assert policy["sandbox"] == ""
    assert "<svg" in page.text and "<style>" in page.text
    assert not re.search(r"<script|<iframe|\son\w+=|(src|href)=\"(?!data:|#)", page.text)


def test_pictures_tell_the_norm_of_a_radius(finished: Finished) -> None:
    front, shown = finished
    url = f"{shown['links']['self']}/samples/0/adversarial.png"
    fog, saturate = "attack=corruptions&eps=fog:3", "attack=corruptions&eps=saturate:3"
    shown_first = set()
    noise = "attack=smoothing&eps=0.25"
    for query in ("eps=L2:2", "eps=2", "eps=Linf:64/255", "attack=fab-t", fog, saturate, noise, ""):
        response = front.request("GET", f"{url}?{query}")
        assert response.status_code == 200, query
        shown_first.add(response.content)
    assert len(shown_first) >= 4
    wrong = ("attack=corruptions", "attack=corruptions&eps=fog:4", "attack=smoothing&eps=0.5")
    for query in ("eps=Linf:2", "eps=L1:2", "eps=:2x", *wrong):
        check_error(front.request("GET", f"{url}?{query}"), 404, "no_such_sample", "")
    text = front.request("GET", f"{shown['links']['self']}/samples/0.json")
    check_error(text, 404, "no_such_sample", "is of images")


def finish(front: Front, location: str) -> Path:
    """Call an evaluation finished; its folder."""
    job_id = location.removeprefix(f"{URL}/")
    front.store.claim("w")
    front.store.finish(job_id, "w", {"models": []})
    return front.folder(job_id)


def test_no_form_of_a_report_before_the_end_or_after_the_deletion(front: Front) -> None:
    location = front.post().headers["location"]

    def check_all(status: int, code: str, message: str) -> None:
        for name, *_ in FORMS.values():
            check_error(front.request("GET", f"{location}/{name}"), status, code, message)

    check_all(409, "evaluation_not_finished", "queued")
    front.request("DELETE", location)
    check_all(404, "no_report", "cancelled")
    front.request("DELETE", location)
    check_all(410, "evaluation_deleted", "")
    location = front.post().headers["location"]
    shutil.rmtree(finish(front, location))
    check_all(404, "no_report", "no longer there")
    check_error(front.request("GET", f"{location}/samples/0/clean.png"), 404, "no_such_sample", "")


def test_a_report_of_another_version_has_no_pictures(finished: Finished, front: Front) -> None:
    done, shown = finished
    location = front.post().headers["location"]
    folder = finish(front, location) / "report"
    shutil.copytree(done.folder(shown["id"]) / "report", folder)
    report = json.loads((folder / "report.json").read_bytes()) | {"schema_version": 1}
    (folder / "report.json").write_text(json.dumps(report))
    picture = front.request("GET", f"{location}/samples/0/clean.png")
    check_error(picture, 404, "no_such_sample", "has schema_version")
