import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from export.torchscript import to_torchscript
from runtimes.torchscript import load_torchscript


@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_trace_equals_the_model_for_any_batch(
    make_model: Callable[..., nn.Module], batch_size: int
) -> None:
    model = make_model()
    loaded = load_torchscript(to_torchscript(model, torch.zeros(2, 1, 28, 28)))
    images = torch.rand(batch_size, 1, 28, 28)
    torch.testing.assert_close(loaded(images), model(images), atol=1e-5, rtol=0)


def test_file_holds_no_debug_tables_and_no_paths(make_model: Callable[..., nn.Module]) -> None:
    content = to_torchscript(make_model(), torch.zeros(2, 1, 28, 28))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert not [name for name in archive.namelist() if name.endswith(".debug_pkl")]
        texts = b"".join(archive.read(name) for name in archive.namelist())
    assert b"site-packages" not in texts
    assert b"deit.py" not in texts


class Trap:
    """What runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled(make_model: Callable[..., nn.Module], tmp_path: Path) -> None:
    trap = Trap(tmp_path / "caught")
    torch.save(trap, saved := io.BytesIO())
    stream, content = io.BytesIO(), to_torchscript(make_model(), torch.zeros(2, 1, 28, 28))
    with zipfile.ZipFile(io.BytesIO(content)) as given, zipfile.ZipFile(stream, "w") as archive:
        for name in given.namelist():
            part = pickle.dumps(trap) if name.endswith("/data.pkl") else given.read(name)
            archive.writestr(name, part)
    for hostile in (saved.getvalue(), stream.getvalue()):
        with pytest.raises(RuntimeError):
            load_torchscript(hostile)
    assert not list(tmp_path.iterdir())
