import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from export.program import load_program, to_program

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


class Trap:
    """What runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def with_weight_pickled(parts: dict[str, bytes], trap: bytes) -> None:
    name = "archive/data/weights/model_weights_config.json"
    config = json.loads(parts[name])
    entry = next(iter(config["config"].values()))
    entry["use_pickle"] = True
    parts[name] = json.dumps(config).encode()
    parts[f"archive/data/weights/{entry['path_name']}"] = trap


def with_opaque_constant(parts: dict[str, bytes], trap: bytes) -> None:
    name = "archive/data/constants/model_constants_config.json"
    config = json.loads(parts[name])
    next(iter(config["config"].values()))["path_name"] = "opaque_obj_0"
    parts[name] = json.dumps(config).encode()
    parts["archive/data/constants/opaque_obj_0"] = trap


def with_inputs(parts: dict[str, bytes], trap: bytes) -> None:
    parts["archive/data/sample_inputs/model.pt"] = trap


def with_weights_of_before(parts: dict[str, bytes], trap: bytes) -> None:
    parts["archive/data/weights/model.pt"] = trap


@pytest.mark.parametrize(
    "spoil", [with_weight_pickled, with_opaque_constant, with_inputs, with_weights_of_before]
)
def test_nothing_is_unpickled(
    content: bytes, tmp_path: Path, spoil: Callable[[dict[str, bytes], bytes], None]
) -> None:
    torch.save(Trap(tmp_path / "caught"), trap := io.BytesIO())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    spoil(parts, trap.getvalue())
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, part in parts.items():
            archive.writestr(name, part)
    with pytest.raises(ValueError, match="must hold (nothing pickled|the parts of a program)"):
        load_program(stream.getvalue())
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_a_part_that_is_there_twice_is_refused(content: bytes) -> None:
    stream = io.BytesIO(content)
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("archive/byteorder", b"little")
    with pytest.raises(ValueError, match="must hold every part once"):
        load_program(stream.getvalue())


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model.pt2 must be an archive"):
        load_program(pickle.dumps(Trap(tmp_path / "caught")))
    assert not list(tmp_path.iterdir())
