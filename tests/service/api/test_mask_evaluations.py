"""Evaluations of segmenters: what may be uploaded, and what comes of it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.images import decode_image, fit_mask, to_pixels
from data.sets import StoredMaskSet, load_masks, load_pixels
from runtimes.artifact import Artifact
from service.jobs.uploads import open_inputs
from tests.data.test_masks import encoded, png
from tests.service.front import PNG, Front, archive, check_error, zipped

NAME = "tiny-segmenter"
PGD: dict[str, Any] = {"name": "segpgd", "eps": ["8/255"], "steps": 2}


@pytest.fixture
def front(
    tmp_path: Path, artifacts: dict[str, Artifact], mask_artifact: Artifact
) -> Iterator[Front]:
    front = Front(tmp_path / "state", artifacts | {NAME: mask_artifact})
    yield front
    front.close()


def scenes(count: int = 3, side: int = 12) -> dict[str, bytes]:
    """Images and masks of three classes by their paths."""
    generator, found = np.random.default_rng(0), dict[str, bytes]()
    for index in range(count):
        image = generator.integers(0, 256, (side, side), dtype=np.uint8)
        mask = generator.choice(np.array([0, 1, 2, 255], np.uint8), (side, side))
        found |= {f"images/{index}.png": png(image), f"masks/{index}.png": png(mask)}
    return found


def post(front: Front, files: dict[str, bytes], *attacks: dict[str, Any], **more: Any) -> Any:
    fields = {"labels": more.pop("labels", None), "texts": more.pop("texts", None)}
    spec = {"model": NAME, "attacks": attacks or [PGD]} | more
    return front.post(archive(zipped(files)), spec=json.dumps(spec), **fields)


def test_masks_are_kept_at_the_size_of_the_model(front: Front, mask_artifact: Artifact) -> None:
    files, spec = scenes(), mask_artifact.image_spec
    accepted = post(front, {f"set/{name}": content for name, content in files.items()})
    assert accepted.status_code == 202, accepted.text
    folder = front.folder(accepted.json()["id"])
    assert sorted(path.name for path in folder.iterdir()) == [
        "inputs.json", "masks-0.npy", "pixels-0.npy",
    ]  # fmt: skip
    found = open_inputs(folder, mask_artifact.labels)
    assert isinstance(found, StoredMaskSet) and found.names == ["0.png", "1.png", "2.png"]
    images = [decode_image(files[f"images/{name}"]) for name in found.names]
    masks = [np.asarray(decode_image(files[f"masks/{name}"])) for name in found.names]
    expected = np.stack([fit_mask(mask, spec) for mask in masks])
    np.testing.assert_array_equal(load_pixels(found, spec), [to_pixels(i, spec) for i in images])
    np.testing.assert_array_equal(load_masks(found, spec), expected)
    np.testing.assert_array_equal(load_masks(found.take([2, 0]), spec), expected[[2, 0]])


BROKEN: dict[str, tuple[dict[str, bytes], int, str, str]] = {
    "no masks": ({"images/a.png": PNG}, 422, "invalid_archive", "images.zip must hold the folders"),
    "no image": (scenes() | {"masks/9.png": PNG}, 422, "invalid_archive", "9.png has no image"),
    "no mask": (scenes() | {"images/9.png": PNG}, 422, "invalid_archive", "no mask masks/9.png"),
    "another size": (
        scenes() | {"masks/1.png": png(np.zeros((12, 13), np.uint8))},
        422,
        "invalid_archive",
        "masks/1.png must have the size of its image, 12 x 12, got 13 x 12",
    ),
    "no class": (
        scenes() | {"masks/1.png": png(np.full((12, 12), 3, np.uint8))},
        422,
        "invalid_archive",
        "masks/1.png, row 0, column 0: 3 is no class: they are 0 to 2, and 255 is ignored",
    ),
    "colors": (
        scenes() | {"masks/1.png": png(np.zeros((12, 12, 3), np.uint8))},
        422,
        "invalid_archive",
        "masks/1.png must hold an index for each pixel",
    ),
    "no PNG": (
        scenes() | {"masks/1.png": encoded(np.zeros((12, 12), np.uint8), "JPEG")},
        422,
        "invalid_archive",
        "masks/1.png must be a PNG",
    ),
    "broken mask": (
        scenes() | {"masks/1.png": scenes()["masks/1.png"][:60]},
        422,
        "invalid_archive",
        "masks/1.png: the image data is broken",
    ),
    "no image file": (scenes() | {"images/1.png": b"x"}, 422, "invalid_archive", "1.png: not an"),
    "outside": (scenes() | {"../x.png": PNG}, 422, "unsafe_archive", "no plain file"),
    "many": (scenes(2001, side=1), 422, "too_many_images", "2001 .* 2000"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_archives_that_hold_no_pairs_are_refused(front: Front, name: str) -> None:
    files, status, code, message = BROKEN[name]
    check_error(post(front, files), status, code, message)
    assert front.folders() == []


def test_what_says_nothing_of_pixels_is_refused(front: Front) -> None:
    files, spec = scenes(), json.dumps({"model": NAME, "attacks": [PGD]})
    check_error(front.post(spec=spec), 422, "no_masks", "a zip of `images/` and `masks/`")
    check_error(front.post(archive(b"PAR1"), spec=spec), 415, "not_an_archive", "must be a zip")
    check_error(post(front, files, labels="[0, 1, 2]"), 422, "invalid_labels", "leave `labels` out")
    for attack in ({"name": name, "eps": ["8/255"]} for name in ("square", "apgd-ce")):
        check_error(post(front, files, attack), 422, "invalid_spec", "use fgsm, pgd or segpgd")
    rules = {"top_k": [1, 2], "class_map": {"a": "sky"}, "gate": "robust_accuracy >= 0.5"}
    for field, value in rules.items():
        check_error(post(front, files, **{field: value}), 422, "invalid_spec", f"{field}: must")
    other = post(front, files, compare_with="fashion-dot")
    check_error(other, 422, "invalid_spec", "compare_with: must have the same labels")
    of_classifier = post(front, files, model="fashion-dot")
    check_error(of_classifier, 422, "invalid_spec", "answers with one class: use pgd")
    assert front.folders() == []


@pytest.mark.slow
def test_an_evaluation_reports_pixels_and_shows_class_maps(front: Front) -> None:
    gate = "clean_pixel_accuracy >= 0"
    accepted = post(front, scenes(), PGD, {"name": "fgsm", "eps": ["8/255"]}, gate=gate)
    assert accepted.status_code == 202, accepted.text
    job = front.run_all()[accepted.json()["id"]]
    assert job.status == "succeeded" and job.result is not None, job.error
    assert job.result["metric"] == "pixel accuracy"
    (model,) = job.result["models"]
    assert model["largest"]["mean_iou"] <= model["clean"]["mean_iou"]
    folder = front.folder(job.id)
    assert not list(folder.glob("*.npy"))
    page = (folder / "report" / "report.html").read_text(encoding="utf-8")
    for title in ("mask", "prediction before", "prediction after"):
        assert re.search(f'<span class="frame-title">{title}', page)
