"""TorchScript and programs of `torch.export`: the model's answers, and nothing that runs code."""

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.export.passes import move_to_device_pass

from export.torch_files import load_program
from runtimes.artifact import Artifact
from runtimes.base import blank_inputs
from runtimes.manifest import PROGRAM, TORCHSCRIPT
from runtimes.torchscript import load_torchscript
from tests.exported import zipped


def parts(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_files_hold_no_paths_no_debug_tables_and_nothing_pickled(artifact: Artifact) -> None:
    trace, program = parts(artifact.read(TORCHSCRIPT)), parts(artifact.read(PROGRAM))
    assert not [name for name in trace if name.endswith(".debug_pkl")]
    texts = b"".join(trace.values())
    assert b"site-packages" not in texts and b"deit.py" not in texts
    assert b".py" not in b"".join(program.values())
    assert not any(text.startswith((b"PK", b"\x80")) for text in program.values())
    for name, text in program.items():
        if name.endswith("_config.json"):
            entries = json.loads(text)["config"].values()
            assert entries and not any(entry["use_pickle"] for entry in entries)


def test_program_moves_to_a_device_as_a_whole(artifact: Artifact, text_artifact: Artifact) -> None:
    for each in (artifact, text_artifact):
        program = torch.export.load(io.BytesIO(each.read(PROGRAM)))
        moved = move_to_device_pass(program, "meta").module()
        inputs = blank_inputs(each, 3)
        given = [torch.from_numpy(values).to("meta") for values in inputs.values()]
        with torch.inference_mode():
            assert moved(*given).is_meta


class Trap:
    """What runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_nothing_of_a_trace_is_unpickled(artifact: Artifact, tmp_path: Path) -> None:
    trap = Trap(tmp_path / "caught")
    torch.save(trap, saved := io.BytesIO())
    found = parts(artifact.read(TORCHSCRIPT))
    found[next(name for name in found if name.endswith("/data.pkl"))] = pickle.dumps(trap)
    for hostile in (saved.getvalue(), zipped(found)):
        with pytest.raises(RuntimeError):
            load_torchscript(hostile)
    assert not list(tmp_path.iterdir())


def point(config: str, trap: bytes, at: str | None = None) -> Callable[[dict[str, bytes]], None]:
    """A change of the first entry of a config, whose file becomes the trap, perhaps elsewhere."""

    def spoil(found: dict[str, bytes]) -> None:
        name = f"archive/data/{config}/model_{config}_config.json"
        fields = json.loads(found[name])
        entry = next(iter(fields["config"].values()))
        entry |= {"path_name": at} if at else {"use_pickle": True}
        found[name] = json.dumps(fields).encode()
        found[f"archive/data/{config}/{entry['path_name']}"] = trap

    return spoil


def test_nothing_of_a_program_is_unpickled(artifact: Artifact, tmp_path: Path) -> None:
    torch.save(Trap(tmp_path / "caught"), stream := io.BytesIO())
    trap = stream.getvalue()
    for spoil in (
        point("weights", trap),
        point("constants", trap, at="opaque_obj_0"),
        lambda found: found.update({"archive/data/sample_inputs/model.pt": trap}),
        lambda found: found.update({"archive/data/weights/model.pt": trap}),  # of older versions
    ):
        spoil(found := parts(artifact.read(PROGRAM)))
        with pytest.raises(ValueError, match="must hold (nothing pickled|the parts of a program)"):
            load_program(zipped(found))
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_a_program_with_a_part_twice_or_that_is_no_archive_is_refused(
    artifact: Artifact, tmp_path: Path
) -> None:
    stream = io.BytesIO(artifact.read(PROGRAM))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr("archive/byteorder", b"little")
    with pytest.raises(ValueError, match="must hold every part once"):
        load_program(stream.getvalue())
    with pytest.raises(ValueError, match="model.pt2 must be an archive"):
        load_program(pickle.dumps(Trap(tmp_path / "caught")))
    assert not list(tmp_path.iterdir())
