import io
import json
import zipfile
from collections.abc import Callable

import pytest
import torch
from torch import nn

from export.to_program import load_program, to_program

Make = Callable[..., nn.Module]
EXAMPLE = torch.zeros(2, 1, 28, 28)


@pytest.fixture(scope="module")
def content(make_model: Make) -> bytes:
    return to_program(make_model(), EXAMPLE)


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_program_equals_the_model_for_any_batch(
    make_model: Make, content: bytes, batch_size: int
) -> None:
    images = torch.rand(batch_size, 1, 28, 28)
    expected = make_model()(images)
    torch.testing.assert_close(load_program(content)(images), expected, atol=1e-5, rtol=0)


def test_file_holds_no_paths_and_nothing_pickled(content: bytes) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    assert b".py" not in b"".join(files.values())
    assert not any(text.startswith(b"PK") or text.startswith(b"\x80") for text in files.values())
    for name, text in files.items():
        if name.endswith("_config.json"):
            entries = json.loads(text)["config"].values()
            assert entries and not any(entry["use_pickle"] for entry in entries)


def test_the_same_weights_give_the_same_bytes(make_model: Make, content: bytes) -> None:
    assert to_program(make_model(), EXAMPLE) == content
