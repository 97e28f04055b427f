"""Models come and go while the service runs."""

import asyncio
import gc
import json
import shutil
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from export import child
from runtimes.artifact import CARD_JSON, Artifact, open_artifact
from runtimes.manifest import ONNX
from service.decoding.pool import Decoders
from service.http.refusal import ApiError
from service.predictions.images import Predictions
from service.predictions.registry import Registry
from service.predictions.reload import Reloader, exclusive
from service.settings import Settings
from tests.exported import with_file
from tests.service.conftest import png
from tests.service.tiny_artifact import copy_artifact


class World:
    """A registry over a folder of its own, and what keeps both in step."""

    def __init__(self, settings: Settings, folder: Path, artifact: Artifact) -> None:
        self.folder, self.artifact = folder, artifact
        folder.mkdir()
        self.add("one", version="1")
        self.settings = settings.model_copy(update={"models": [folder], "reload_s": 0.02})
        self.registry = Registry.open(self.settings)
        marks = settings.state / "unloaded"
        self.reloader = Reloader(self.registry, self.settings, unloaded=marks)

    def add(self, name: str, *, version: str) -> Path:
        return copy_artifact(self.artifact, self.folder / name, version=version)

    def served(self) -> list[str]:
        return [f"{s.artifact.name}:{s.artifact.version}" for s in self.registry.all()]

    async def look_twice(self) -> None:
        await self.reloader.look()
        await self.reloader.look()


@pytest.fixture
async def world(
    settings: Settings, tiny_artifact: Artifact, tmp_path: Path
) -> AsyncIterator[World]:
    """Version 1 of a model is served."""
    world = World(settings, tmp_path / "models", tiny_artifact)
    yield world
    world.reloader.close()
    world.registry.close()


async def test_an_imported_model_is_found_too(world: World, imported: Artifact) -> None:
    shutil.copytree(imported.folder, world.folder / "two")
    await world.look_twice()
    assert world.served() == ["fashion-elliptical:1", "foreign:1"]


pytestmark = pytest.mark.anyio
ONE, TWO = "fashion-elliptical:1", "fashion-elliptical:2"


async def test_a_new_version_is_served_and_a_removed_one_is_not(world: World) -> None:
    two = world.add("two", version="2")
    await world.reloader.look()
    assert world.served() == [ONE]  # it may still be half a copy
    await world.reloader.look()
    assert world.served() == [ONE, TWO]
    assert world.registry.get().artifact.version == "2"
    shutil.rmtree(two)
    await world.look_twice()
    assert world.served() == [ONE]
    shutil.rmtree(world.folder / "one")
    await world.look_twice()
    assert world.served() == [] and not await world.registry.ready()
    with pytest.raises(ApiError) as nothing:
        world.registry.get()
    assert nothing.value.code == "unknown_model"


async def test_a_copy_is_opened_when_it_is_complete_and_no_other_worker_measures(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    whole = copy_artifact(world.artifact, world.folder.parent / "whole", version="2")
    (world.folder / "two").mkdir()
    for path in sorted(whole.iterdir()):
        (world.folder / "two" / path.name).write_bytes(path.read_bytes())
        await world.reloader.look()
    assert world.served() == [ONE]
    with exclusive(world.settings.runtimes_folder):
        opening = asyncio.create_task(world.reloader.look())
        await asyncio.sleep(0.2)
        assert not opening.done() and world.served() == [ONE]
    await opening
    assert world.served() == [ONE, TWO]
    assert "not served" not in caplog.text


async def test_a_broken_folder_is_told_once_and_left(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    two = world.add("two", version="2")
    (two / "weights.safetensors").write_bytes(b"x")
    for _ in range(5):
        await world.reloader.look()
    assert world.served() == [ONE]
    [(name, problem)] = world.reloader.problems()
    assert (name, str(world.folder) in problem) == ("two", False)
    with pytest.raises(ApiError) as refused:
        await world.reloader.load("two")
    assert (refused.value.status, refused.value.code) == (422, "not_loadable")
    good = world.artifact.folder / "weights.safetensors"
    (two / "weights.safetensors").write_bytes(good.read_bytes())
    await world.look_twice()
    assert world.served() == [ONE, TWO] and not world.reloader.problems()
    assert caplog.text.count("two is not served") == 1


def endless(content: bytes, *, batch: int) -> bytes:
    """A graph whose answer to a batch of one size goes round a loop for ever."""
    model = onnx.load_from_string(content)
    graph, helper = model.graph, onnx.helper
    last = next(node for node in graph.node if "logits" in node.output)
    last.output[:] = ["raw" if name == "logits" else name for name in last.output]
    boolean, number = onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Identity", ["before"], ["after"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", boolean, []),
            helper.make_tensor_value_info("before", number, None),
        ],
        [
            helper.make_tensor_value_info("goes_on", boolean, []),
            helper.make_tensor_value_info("after", number, None),
        ],
    )
    graph.initializer.append(helper.make_tensor("loops", onnx.TensorProto.INT64, [1], [batch]))
    graph.node.append(helper.make_node("Shape", ["raw"], ["size"], start=0, end=1))
    graph.node.append(helper.make_node("Equal", ["size", "loops"], ["equal"]))
    graph.node.append(helper.make_node("Squeeze", ["equal"], ["start"]))
    graph.node.append(helper.make_node("Loop", ["", "start", "raw"], ["logits"], body=body))
    return model.SerializeToString()


@pytest.mark.parametrize("batch", [1, 8])
async def test_an_endless_graph_is_refused_once_and_others_are_opened_meanwhile(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(child, "FIRST_PREDICTION_S", 1)
    folder = world.add("loop", version="3")
    graph = endless((folder / ONNX).read_bytes(), batch=batch)
    with_file(folder, ONNX, graph)
    await world.reloader.look()
    await world.reloader.look(patience_s=0)
    world.add("two", version="2")
    for _ in range(100):
        await world.reloader.look(patience_s=0.05)
        if TWO in world.served():
            break
    assert world.served() == [ONE, TWO] and world.folder / "loop" in world.reloader._opening
    await world.reloader.look()
    [(name, problem)] = world.reloader.problems()
    assert name == "fashion-elliptical"
    assert problem.endswith("a first prediction takes more than 1 s of processor time")
    await world.look_twice()
    assert caplog.text.count("loop is not served") == 1
    assert world.served() == [ONE, TWO]


async def test_a_server_that_leaves_keeps_what_it_serves(world: World) -> None:
    world.reloader.start()
    with exclusive(world.settings.runtimes_folder):
        world.add("two", version="2")
        await asyncio.sleep(0.2)  # it is being opened
        world.reloader.stop()
        shutil.rmtree(world.folder / "one")
    await asyncio.sleep(0.2)
    assert world.served() == [ONE]


async def test_a_version_stays_until_the_next_is_open_unless_it_is_unloaded(world: World) -> None:
    with exclusive(world.settings.runtimes_folder):  # nothing can be opened
        shutil.rmtree(world.folder / "one")
        world.add("one", version="2")
        for _ in range(3):
            await world.reloader.look(patience_s=0.05)
        assert world.served() == [ONE]
        await world.reloader.unload("fashion-elliptical")
        assert world.served() == []
    await world.reloader.load("fashion-elliptical")
    assert world.served() == [TWO]


async def test_a_version_never_changes_its_contents(
    world: World, tiny_models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = world.registry.find(ONE)
    shutil.rmtree(world.folder / "one")
    other = open_artifact(tiny_models / "dot")
    copy_artifact(other, world.folder / "one", version="1", name="fashion-elliptical")
    await world.look_twice()
    await world.reloader.look()
    assert world.registry.find(ONE) is before  # the old one goes on answering
    assert caplog.text.count("a version is immutable: fashion-elliptical:1") == 1


async def test_a_name_keeps_its_task_and_a_folder_may_move_or_change(
    world: World, tiny_models: Path
) -> None:
    text = open_artifact(tiny_models / "transject")
    copy_artifact(text, world.folder / "text", version="9", name="fashion-elliptical")
    world.add("torch_model", version="1")
    await world.look_twice()
    assert world.served() == [ONE]
    problems = dict(world.reloader.problems())
    assert len(world.reloader.problems()) == 2 and set(problems) == {"fashion-elliptical"}
    before = world.registry.find(ONE).runtime
    shutil.rmtree(world.folder / "torch_model")
    (world.folder / "one").rename(world.folder / "moved")
    await world.look_twice()
    assert world.registry.find(ONE).runtime is before
    assert world.registry.find(ONE).artifact.folder.name == "moved"
    card = {"digest": world.registry.find(ONE).artifact.digest, "scored": True}
    (world.folder / "moved" / CARD_JSON).write_text(json.dumps(card))
    await world.look_twice()
    now = world.registry.find(ONE)
    assert now.artifact.card == card and now.runtime is before
    shutil.rmtree(world.folder / "moved")
    world.add("moved", version="2")
    await world.look_twice()
    assert world.served() == [TWO]  # a folder may hold a new version


async def test_unloaded_is_unloaded_for_every_worker(world: World, settings: Settings) -> None:
    marks = settings.state / "unloaded"
    other = Reloader(world.registry, world.settings, unloaded=marks)
    await world.reloader.unload("fashion-elliptical")
    assert world.served() == []
    assert [artifact.version for artifact in world.reloader.unloaded()] == ["1"]
    await other.look()
    assert world.served() == []
    for act in (world.reloader.unload, world.reloader.load):
        with pytest.raises(ApiError) as unknown:
            await act("nope")
        assert (unknown.value.status, unknown.value.code) == (404, "unknown_model")
    await world.reloader.load("fashion-elliptical")
    assert world.served() == [ONE]
    await other.look()
    assert world.served() == [ONE]
    other.close()


async def test_a_request_in_flight_ends_on_its_model_which_then_leaves_the_memory(
    world: World,
) -> None:
    path = world.add("two", version="2")
    await world.look_twice()
    decoders = Decoders(world.settings)
    predictions = Predictions(world.settings, decoders)
    await predictions.predict([png()], world.registry.get(), explain=True)
    predictions.close()
    decoders.close()
    gone = weakref.ref(world.registry.find(TWO).runtime)

    async def read() -> np.ndarray:
        """The model goes away after the request was admitted."""
        shutil.rmtree(path)
        await world.look_twice()
        assert world.served() == [ONE]
        return np.zeros((1, 1, 8, 8), np.float32)

    async with world.registry.find(TWO).batcher.admission(1) as admitted:
        assert gone() is not None
        assert (await admitted.predict(read)).shape == (1, 3)
    del admitted
    for _ in range(50):  # the runtime's thread may not have let go of its last work yet
        gc.collect()
        if gone() is None:
            break
        await asyncio.sleep(0.02)
    assert gone() is None
