"""Runtimes are measured while their models are served already."""

import asyncio
import shutil
import subprocess
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
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


async def _settle(
    registry: Registry, settings: Settings, meanwhile: Callable[[], object] = bool
) -> None:
    settler = RuntimeSelector(registry, settings)
    settler.start()
    meanwhile()
    measuring = [describe_model(served, registry)["measuring"] for served in registry.all()]
    assert all(measuring) if settler._task is not None else not any(measuring)
    if settler._task is not None:
        await asyncio.wait_for(settler._task, 120)


def test_models_answer_at_once_and_move_to_what_measuring_finds(
    automatic: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    check_models(automatic)
    with closing(Registry.open(automatic)) as registry:
        before = registry.all()
        assert {served.runtime.name for served in before} == {REFERENCE}
        asyncio.run(_settle(registry, automatic))
        assert registry.measuring == set()
        for old, new in zip(before, registry.all(), strict=True):
            options = {"name": "auto", "mode": "exact", "threads": available_cores()}
            cache = automatic.runtimes_folder
            selection = cached_selection(new.artifact, cache=cache, **options)
            assert selection is not None and selection.runtime in installed()
            runtime = (new.runtime.name, new.runtime.precision)
            assert runtime == (selection.runtime, selection.precision)
            assert new is not old and new.artifact is old.artifact
    monkeypatch.setattr(subprocess, "run", None)  # a later start measures nothing
    with closing(Registry.open(automatic)) as later:
        names = [served.runtime.name for served in later.all()]
        assert names == [served.runtime.name for served in registry.all()]
        asyncio.run(_settle(later, automatic))

    fresh = automatic.model_copy(update={"state": tmp_path / "fresh"})
    with closing(Registry.open(fresh)) as registry:
        before, opens = registry.all(), registry.opener.open
        refused = before[0].artifact

        def refuses(artifact: Artifact) -> Served:
            """What was measured cannot be opened."""
            if artifact is refused:
                raise ValueError("the runtime differs from torch")
            return opens(artifact)

        monkeypatch.setattr(registry.opener, "open", refuses)
        measured = partial(shutil.copytree, automatic.runtimes_folder, fresh.runtimes_folder)
        asyncio.run(_settle(registry, fresh, measured))
        assert registry.all()[0] is before[0] and registry.measuring == set()
        assert all(n is not o for n, o in zip(registry.all()[1:], before[1:], strict=True))
        assert f"{refused.name} stays on the runtime" in caplog.text


def test_models_stay_where_they_are_when_measuring_fails(
    automatic: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = tmp_path / "dies"
    dies.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dies.chmod(0o755)
    fast = automatic.model_copy(update={"precision": "fast"})
    check_models(fast)
    monkeypatch.setattr("sys.executable", str(dies))
    with closing(Registry.open(fast)) as registry:
        before = registry.all()
        asyncio.run(_settle(registry, fast))
        assert registry.all() == before


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
