"""The models that are served: opened artifacts, each with its runtime and its batcher."""

import asyncio
import re
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import numpy as np

from export.artifact import Artifact, find_artifacts
from export.runtime import Runtime, open_runtime
from service.batching import MicroBatcher
from service.errors import ApiError
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Served:
    """One version of a model, ready to predict."""

    artifact: Artifact
    runtime: Runtime
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
            spec = served.artifact.image_spec
            for size in {1, self._settings.batch_max}:
                zeros = np.zeros((size, spec.channels, spec.height, spec.width), np.float32)
                await loop.run_in_executor(self._executor, served.runtime.predict, zeros)

    def close(self) -> None:
        """Let the running batch end and start no other."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _serve(self, artifact: Artifact) -> Served:
        runtime = open_runtime(artifact, threads=self._settings.predict_threads)
        batcher = MicroBatcher(
            runtime.predict,
            self._executor,
            batch_max=self._settings.batch_max,
            queue_max=self._settings.predict_queue,
            timeout_s=self._settings.predict_timeout_s,
        )
        return Served(artifact, runtime, batcher)


def check_models(settings: Settings) -> None:
    """Check what the settings say of models without opening a runtime, before anything starts.

    Raises:
        ValueError: an artifact is not sound, there is none, or the default model is not served.
    """
    default_model({artifact.name for artifact in find_artifacts(settings.models)}, settings)


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
