"""The models that are served: opened artifacts, each with its runtime and its batcher."""

import asyncio
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np

from data.token_set import Ragged
from export.artifact import Artifact, ArtifactError, find_artifacts
from export.manifest import Task
from export.runtime import RuntimeUnavailable, blank_inputs, open_runtime, require_runtime, settle
from export.runtimes.engines import ENGINES
from export.threads import available_cores
from service.batching import MicroBatcher, concatenate
from service.errors import ApiError
from service.health import Monitored, Readiness
from service.settings import Settings

IMAGES: Task = "image-classification"
TEXTS: Task = "text-classification"
_READS = {IMAGES: "images", TEXTS: "texts"}


@dataclass(frozen=True, slots=True)
class Served:
    """One version of a model, ready to predict."""

    artifact: Artifact
    runtime: Monitored
    batcher: MicroBatcher


class Registry:
    """Finds served models by name and version.

    Args:
        artifacts: at least one; no two share name and version.
        settings: limits, and the default model.

    Raises:
        ValueError: nothing to serve, two artifacts of one name and version, one name for models
            that read different things, or a default model that was asked for and is not served.
    """

    def __init__(self, artifacts: Sequence[Artifact], settings: Settings) -> None:
        self._settings = settings
        # One thread for all models: runtimes use every core themselves.
        self._executor = ThreadPoolExecutor(1, "runtime")
        self._models: dict[str, dict[str, Served]] = {}
        _refuse_twins(artifacts)
        for artifact in artifacts:
            versions = self._models.setdefault(artifact.name, {})
            versions[artifact.version] = self._serve(artifact)
        self._defaults = default_models(artifacts, settings)
        self._readiness = Readiness(
            [served.runtime for served in self.all()],
            self._executor,
            timeout_s=settings.predict_timeout_s,
        )

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """A registry of all artifacts that the settings name."""
        return cls(find_artifacts(settings.models), settings)

    def get(self, reference: str | None = None, task: Task = IMAGES) -> Served:
        """The model called ``name`` (its highest version) or ``name:version``; None: the default.

        Raises:
            ApiError: 404 unknown_model, 422 wrong_task for a model that reads something else.
        """
        served = self.find(reference or self._defaults.get(task, ""))
        if served.artifact.manifest.task != task:
            name = served.artifact.name
            message = f"The model {name!r} does not read {_READS[task]}."
            raise ApiError(422, "wrong_task", message, {"task": served.artifact.manifest.task})
        return served

    def find(self, reference: str) -> Served:
        """The model called ``name`` or ``name:version``, whatever it reads.

        Raises:
            ApiError: 404 unknown_model.
        """
        name, _, version = reference.partition(":")
        versions = self._models.get(name, {})
        if versions and not version:
            version = max(versions, key=_by_number)
        if version not in versions:
            message = f"There is no model {name[:100]!r}." if name else "There is no such model."
            if versions:
                message = f"The model {name!r} has no version {version[:100]!r}."
            raise ApiError(404, "unknown_model", message, {"known": sorted(self._models)})
        return versions[version]

    def is_default(self, served: Served) -> bool:
        """Whether this is what answers when nobody names a model."""
        name = self._defaults[served.artifact.manifest.task]
        return served is self.find(name)

    def all(self) -> list[Served]:
        """Every version of every model, the default models first, those of images before."""
        first = [self._defaults[task] for task in _READS if task in self._defaults]
        others = sorted(name for name in self._models if name not in first)
        return [
            self._models[name][v] for name in first + others for v in sorted(self._models[name])
        ]

    async def warm_up(self) -> None:
        """Run every model once alone and once on a full batch, before the first request does."""
        loop = asyncio.get_running_loop()
        for served in self.all():
            for size in {1, self._settings.batch_max}:
                blank = blank_inputs(served.artifact, size)
                await loop.run_in_executor(self._executor, served.runtime.predict, blank)

    async def ready(self) -> bool:
        """Whether every runtime answers now."""
        return await self._readiness.ready()

    def close(self) -> None:
        """Let the running batch end and start no other."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _serve(self, artifact: Artifact) -> Served:
        settings = self._settings
        runtime = Monitored(
            open_runtime(
                artifact,
                name=settings.runtime,
                precision=settings.precision,
                threads=settings.predict_threads,
                cache=settings.runtimes_folder,
            ),
            blank_inputs(artifact, 1),
        )
        batcher = MicroBatcher(
            runtime.predict,
            self._executor,
            batch_max=settings.batch_max,
            queue_max=settings.predict_queue,
            timeout_s=settings.predict_timeout_s,
            join=concatenate if artifact.manifest.task == IMAGES else pad,
        )
        return Served(artifact, runtime, batcher)


def check_models(settings: Settings) -> dict[str, str]:
    """Check what the settings say of models, before anything starts.

    Runtimes are tried in a process of their own, whose answers are kept for the workers.

    Returns:
        Environment variables for the workers, other than those that this process was given.

    Raises:
        ValueError: an artifact is not sound, there is none, two have one name and version, the
            default model is not served, or the runtime is not there.
    """
    artifacts = find_artifacts(settings.models)
    _refuse_twins(artifacts)
    default_models(artifacts, settings)
    _try_tokenizers(artifacts)
    threads = settings.predict_threads or available_cores()
    try:
        require_runtime(settings.runtime)
        if settings.runtime == "onnx-cpu" and settings.precision == "exact":
            for artifact in artifacts:
                _try_to_open(artifact, threads)
        else:
            choices = settle(
                artifacts,
                name=settings.runtime,
                mode=settings.precision,
                threads=threads,
                cache=settings.runtimes_folder,
            )
            # Where measuring has failed, the workers must not begin it again.
            if any(not c.milliseconds for c in choices) and all(map(_on_reference, artifacts)):
                return {"ASSAY_RUNTIME": "onnx-cpu", "ASSAY_PRECISION": "exact"}
    except RuntimeUnavailable as error:
        raise ValueError(f"ASSAY_RUNTIME={settings.runtime}: {error}") from error
    return {}


def default_models(artifacts: Sequence[Artifact], settings: Settings) -> dict[Task, str]:
    """The model used for each task when a request names none.

    Raises:
        ValueError: nothing is served, one name is used for both tasks, or a default model that was
            asked for and is not served.
    """
    if not artifacts:
        raise ValueError("ASSAY_MODELS must name at least one artifact, found none")
    tasks = {artifact.name: artifact.manifest.task for artifact in artifacts}
    for artifact in artifacts:
        if tasks[artifact.name] != artifact.manifest.task:
            raise ValueError(f"ASSAY_MODELS must use a name for one task, received {artifact.name}")
    fields: dict[Task, str] = {IMAGES: "default_image", TEXTS: "default_text"}
    return {
        task: name
        for task, field in fields.items()
        if (name := _default([n for n in tasks if tasks[n] == task], field, settings))
    }


def _default(names: list[str], field: str, settings: Settings) -> str | None:
    wanted = getattr(settings, field)
    if wanted in names:
        return wanted
    if field in settings.model_fields_set:
        known = ", ".join(sorted(names)) or "there is none"
        variable = f"ASSAY_{field.upper()}"
        raise ValueError(f"{variable} must be a served model ({known}), received {wanted!r}")
    return min(names, default=None)


def pad(parts: Sequence[Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    """Token ids of some requests, padded to the longest text: tokens and mask, (B, N) each."""
    rows = Ragged.of([row for part in parts for row in part], np.uint32)
    tokens, mask = rows.padded(int(rows.lengths.max()), 0)  # the mask leaves out whatever pads
    return {"tokens": tokens, "mask": mask}


def _on_reference(artifact: Artifact) -> bool:
    return bool(ENGINES["onnx-cpu"].precisions(artifact.manifest, "exact"))


def _try_to_open(artifact: Artifact, threads: int) -> None:
    """Open ONNX Runtime's CPU engine here: it takes milliseconds and loads nothing else."""
    try:
        open_runtime(artifact, threads=threads)
    except RuntimeUnavailable:
        raise
    except ValueError as error:
        raise ValueError(f"{artifact.name}: {error}") from error


def _try_tokenizers(artifacts: Sequence[Artifact]) -> None:
    for artifact in artifacts:
        if artifact.manifest.task == TEXTS:
            try:
                artifact.tokenizer()
            except ArtifactError as error:
                raise ArtifactError(f"{artifact.name}: {error}") from error


def _refuse_twins(artifacts: Sequence[Artifact]) -> None:
    references = [f"{artifact.name}:{artifact.version}" for artifact in artifacts]
    for index, reference in enumerate(references):
        if reference in references[:index]:
            raise ValueError(f"ASSAY_MODELS must hold a version once, received {reference}")


def _by_number(version: str) -> list[tuple[bool, int, str]]:
    """Key that puts version 10 after version 9 and before a version that is a word."""
    parts = re.split(r"[.\-+_]", version)
    return [(not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]
