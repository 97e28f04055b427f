"""The models that are served: opened artifacts, each with its runtime and its batcher."""

import asyncio
import re
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

from export.artifact import Artifact, find_artifacts
from export.runtime import RuntimeUnavailable, blank_inputs, open_runtime, require_runtime, settle
from export.threads import available_cores
from service.batching import MicroBatcher
from service.errors import ApiError
from service.health import Monitored, Readiness
from service.settings import Settings


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
        ValueError: nothing to serve, two artifacts of one name and version, or a default model
            that was asked for and is not served.
    """

    def __init__(self, artifacts: Sequence[Artifact], settings: Settings) -> None:
        self._settings = settings
        # One thread for all models: runtimes use every core themselves.
        self._executor = ThreadPoolExecutor(1, "runtime")
        self._models: dict[str, dict[str, Served]] = {}
        for artifact in artifacts:
            versions = self._models.setdefault(artifact.name, {})
            if artifact.version in versions:
                reference = f"{artifact.name}:{artifact.version}"
                raise ValueError(f"ASSAY_MODELS must hold a version once, received {reference}")
            versions[artifact.version] = self._serve(artifact)
        self.default = default_model(self._models, settings)
        self._readiness = Readiness(
            [served.runtime for served in self.all()],
            self._executor,
            timeout_s=settings.predict_timeout_s,
        )

    @classmethod
    def open(cls, settings: Settings) -> Self:
        """A registry of all artifacts that the settings name."""
        return cls(find_artifacts(settings.models), settings)

    def get(self, reference: str | None = None) -> Served:
        """The model called ``name`` (its highest version) or ``name:version``; None: the default.

        Raises:
            ApiError: 404 unknown_model.
        """
        name, _, version = (reference or self.default).partition(":")
        versions = self._models.get(name, {})
        if versions and not version:
            version = max(versions, key=_by_number)
        if version not in versions:
            message = f"There is no model {name[:100]!r}."
            if versions:
                message = f"The model {name!r} has no version {version[:100]!r}."
            raise ApiError(404, "unknown_model", message, {"known": sorted(self._models)})
        return versions[version]

    def all(self) -> list[Served]:
        """Every version of every model, the default model first."""
        names = sorted(self._models, key=lambda name: (name != self.default, name))
        return [self._models[name][v] for name in names for v in sorted(self._models[name])]

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
        )
        return Served(artifact, runtime, batcher)


def check_models(settings: Settings) -> None:
    """Check what the settings say of models, before anything starts.

    Runtimes are tried in a process of their own, whose answers are kept for the workers.

    Raises:
        ValueError: an artifact is not sound, there is none, the default model is not served, or
            the runtime is not there.
    """
    artifacts = find_artifacts(settings.models)
    default_model({artifact.name for artifact in artifacts}, settings)
    try:
        require_runtime(settings.runtime)
        if settings.runtime != "onnx-cpu":
            settle(
                artifacts,
                name=settings.runtime,
                mode=settings.precision,
                threads=settings.predict_threads or available_cores(),
                cache=settings.runtimes_folder,
            )
    except RuntimeUnavailable as error:
        raise ValueError(f"ASSAY_RUNTIME={settings.runtime}: {error}") from error


def default_model(names: Collection[str], settings: Settings) -> str:
    """The model used when a request names none.

    Raises:
        ValueError: nothing is served, or a default model that was asked for is not served.
    """
    if not names:
        raise ValueError("ASSAY_MODELS must name at least one artifact, found none")
    wanted = settings.default_image
    if wanted in names:
        return wanted
    if "default_image" in settings.model_fields_set:
        known = ", ".join(sorted(names))
        raise ValueError(
            f"ASSAY_DEFAULT_IMAGE must be a served model ({known}), received {wanted!r}"
        )
    return min(names)


def _by_number(version: str) -> list[tuple[bool, int, str]]:
    """Key that puts version 10 after version 9 and before a version that is a word."""
    parts = re.split(r"[.\-+_]", version)
    return [(not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]
