"""preprocessor_config.json as an input file."""

import json
from pathlib import Path
from typing import Any

import pytest

from export.importers.input_file import read_input
from tests.export.importers.test_torch_sources import CONVNEXT

VIT = CONVNEXT | {"image_processor_type": "ViTImageProcessorFast", "resample": 2, "size": 32}
VIT.pop("crop_pct")
CROPPED = VIT | {
    "image_processor_type": "MobileNetV2ImageProcessor",
    "do_center_crop": True,
    "size": {"shortest_edge": 40},
    "crop_size": {"height": 32, "width": 30},
}
MOBILE_VIT = CROPPED | {"image_processor_type": "MobileViTImageProcessor"}
MOBILE_VIT |= {"do_flip_channel_order": True}
MOBILE_VIT.pop("do_normalize")


def read(folder: Path, content: dict[str, Any]) -> dict[str, Any]:
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps(content))
    return read_input(str(path)).model_dump(exclude_none=True)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (CONVNEXT, {"size": [224, 224], "resize": 256, "resample": "bicubic"}),
        (CONVNEXT | {"size": {"shortest_edge": 384}}, {"size": [384, 384]}),
        (VIT, {"size": [32, 32], "range": [0, 1], "channels": "rgb", "resample": "bilinear"}),
        (CROPPED, {"size": [32, 30], "resize": 40, "mean": [0.5] * 3, "std": [0.25] * 3}),
        (CROPPED | {"do_flip_channel_order": True}, {"channels": "bgr"}),
        (MOBILE_VIT, {"channels": "bgr", "range": [0, 1]}),
        (VIT | {"do_rescale": False}, {"range": [0, 255]}),
        (VIT | {"do_normalize": False, "rescale_factor": 1 / 127.5}, {"range": [0, 2]}),
        (
            VIT
            | {"image_processor_type": "EfficientNetImageProcessor", "include_top": True}
            | {"rescale_factor": 1 / 127.5, "rescale_offset": True},
            {"range": [-1, 1], "std": [0.0625] * 3},
        ),
        (VIT | {"image_mean": [0.5], "image_std": [0.5]}, {"channels": "grey"}),
    ],
)
def test_it_says_what_the_processor_does(
    tmp_path: Path, content: dict[str, Any], expected: dict[str, Any]
) -> None:
    found = read(tmp_path, content)
    assert expected.items() <= found.items()
    assert ("mean" in found) == content.get("do_normalize", False)
    assert ("resize" in found) == ("resize" in expected or content.get("do_center_crop", False))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_pad": True, "size_divisor": 32}, "do_pad, size_divisor cannot be followed"),
        ({"crop_pct": 0.9}, "crop_pct cannot be followed"),
        ({"do_resize": False}, "do_resize must be true"),
        ({"resample": 1}, r"resample must be 2 \(bilinear\) or 3 \(bicubic\), got 1"),
        ({"image_processor_type": "GLPNImageProcessor"}, "'GLPNImageProcessor' cannot be followed"),
        ({"size": {"shortest_edge": 32}}, "size.shortest_edge must come with do_center_crop"),
        ({"size": {"longest_edge": 32}}, "size must have height and width, or shortest_edge"),
        ({"do_center_crop": True, "crop_size": 24}, "size must be a shortest_edge, or equal crop"),
        ({"image_mean": "half"}, "image_mean and image_std must be lists of numbers"),
        ({"rescale_factor": "1/255"}, "rescale_factor must be a number, got '1/255'"),
    ],
)
def test_what_an_input_file_cannot_say_is_refused_by_name(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read(tmp_path, VIT | change)
    assert "preprocessor_config.json: " in str(caught.value)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="broken.json must be JSON in UTF-8"):
        read_input(str(tmp_path / "broken.json"))
