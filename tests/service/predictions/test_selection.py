"""Runtimes are measured while their models are served already."""

import asyncio
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from export.select import cached_selection
from runtimes.artifact import Artifact
from runtimes.registry import installed
from runtimes.threads import available_cores
from service.api.models import describe_model
from service.predictions.registry import Registry, check_models
from service.predictions.reload import RuntimeSelector
from service.predictions.served import REFERENCE, Served
from service.settings import Settings


@pytest.fixture
def automatic(tiny_models: Path, tmp_path: Path) -> Settings:
    """A server that has never started, and finds its runtimes itself."""
    return Settings(models=[tiny_models], state=tmp_path, runtime="auto")


async def _settle(registry: Registry, settings: Settings) -> None:
    settler = RuntimeSelector(registry, settings)
    settler.start()
    measuring = [describe_model(served, registry)["measuring"] for served in registry.all()]
    assert all(measuring) if settler._task is not None else not any(measuring)
    if settler._task is not None:
        await asyncio.wait_for(settler._task, 120)


def test_models_answer_at_once_and_move_to_what_measuring_finds(
    automatic: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_models(automatic)
    registry = Registry.open(automatic)
    before = registry.all()
    assert {served.runtime.name for served in before} == {REFERENCE}
    asyncio.run(_settle(registry, automatic))
    assert registry.measuring == set()
    for old, new in zip(before, registry.all(), strict=True):
        selection = cached_selection(
            new.artifact,
            name="auto",
            mode="exact",
            threads=available_cores(),
            cache=automatic.runtimes_folder,
        )
        assert selection is not None and selection.runtime in installed()
        assert (new.runtime.name, new.runtime.precision) == (selection.runtime, selection.precision)
        assert new is not old and new.artifact is old.artifact
    registry.close()
    monkeypatch.setattr(subprocess, "run", None)  # a later start measures nothing
    later = Registry.open(automatic)
    assert [s.runtime.name for s in later.all()] == [s.runtime.name for s in registry.all()]
    asyncio.run(_settle(later, automatic))
    later.close()


def test_models_stay_where_they_are_when_measuring_fails(
    automatic: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dies.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(dies))
    fast = automatic.model_copy(update={"precision": "fast"})
    check_models(fast)
    registry = Registry.open(fast)
    before = registry.all()
    asyncio.run(_settle(registry, fast))
    assert registry.all() == before
    registry.close()


def test_models_stay_where_they_are_when_the_measured_runtime_cannot_open_them(
    automatic: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check_models(automatic)
    registry = Registry.open(automatic)
    before = registry.all()

    opens = registry.opener.open
    refused = before[0].artifact

    def refuses(artifact: Artifact) -> Served:
        if artifact is refused:
            raise ValueError("the runtime differs from torch")
        return opens(artifact)

    monkeypatch.setattr(registry.opener, "open", refuses)
    asyncio.run(_settle(registry, automatic))
    after = registry.all()
    assert after[0] is before[0] and registry.measuring == set()
    assert all(new is not old for new, old in zip(after[1:], before[1:], strict=True))
    assert f"{refused.name} stays on the runtime" in caplog.text
    registry.close()


def test_a_model_that_left_meanwhile_does_not_return_and_a_newer_card_stays(
    automatic: Settings,
) -> None:
    registry = Registry.open(automatic)
    gone, old, *others = registry.all()
    opened = [registry.opener.open(served.artifact, at_once=True) for served in (gone, old)]
    newer = replace(old.artifact, card="# Written meanwhile")
    registry.replace([replace(old, artifact=newer), *others])
    registry.swap(gone, opened[0])
    registry.swap(old, opened[1])
    assert len(registry.all()) == len(others) + 1
    found = next(s for s in registry.all() if s.artifact is newer)
    assert found.batcher is opened[1].batcher
    registry.close()
