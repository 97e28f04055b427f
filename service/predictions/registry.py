"""The models that are served, by name and version; the set may change at any time."""

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from export.select import select_runtimes
from runtimes.artifact import Artifact, ArtifactError, find_artifacts
from runtimes.base import RuntimeUnavailable
from runtimes.manifest import MANIFEST
from runtimes.registry import require_runtime
from runtimes.tasks import IMAGES, TASKS, Task
from service.http.refusal import ApiError
from service.metrics import Metrics
from service.predictions.served import (
    REFERENCE,
    Opener,
    Readiness,
    Served,
    require_openable,
    runs_on_reference,
    selection_options,
)
from service.settings import Settings


class Registry:
    """Finds served models by name and version; belongs to one event loop.

    A request keeps what it was given, so that a model that leaves answers whoever came before.

    Args:
        artifacts: at least one; no two share name and version.
        settings: limits, and the default model.
        metrics: counts every model's batches.
        remote: names of endpoints that evaluations ask, and predictions do not.

    Attributes:
        measuring: digests of the artifacts for which a faster runtime is being looked for.

    Raises:
        ValueError: nothing to serve, two artifacts of one name and version, one name for models
            that read different things or for an endpoint too, or a default model that was asked for
            and is not served.
    """

    def __init__(
        self,
        artifacts: Sequence[Artifact],
        settings: Settings,
        metrics: Metrics | None = None,
        remote: Collection[str] = (),
    ) -> None:
        _check_names(artifacts, settings, remote)
        self._settings, self.remote = settings, frozenset(remote)
        self.opener = Opener(settings, metrics)
        self.measuring: set[str] = set()
        self.replace([self.opener.open(artifact, at_once=True) for artifact in artifacts])
        self._readiness = Readiness(
            lambda: [served.runtime for served in self.all()],
            self.opener.executor,
            timeout_s=settings.predict_timeout_s,
        )

    @classmethod
    def open(
        cls, settings: Settings, metrics: Metrics | None = None, remote: Collection[str] = ()
    ) -> Self:
        """A registry of all artifacts that the settings name."""
        return cls(_find_all(settings.models), settings, metrics, remote)

    def replace(self, models: Sequence[Served]) -> None:
        """Serve these models and no others, from the next request on."""
        found: dict[str, dict[str, Served]] = {}
        for served in models:
            found.setdefault(served.artifact.name, {})[served.artifact.version] = served
        defaults: dict[Task, str] = {}
        for task in TASKS:
            name = _default(task, models, self._settings)
            if name is not None:
                defaults[task] = name
        # One assignment: other threads look models up too, and read it once.
        self._served = found, defaults

    def get(self, reference: str | None = None, task: Task = IMAGES) -> Served:
        """The model called ``name`` (its highest version) or ``name:version``; None: the default.

        Raises:
            ApiError: 404 unknown_model, 422 wrong_task for a model that reads something else.
        """
        _, defaults = self._served
        served = self.find(reference or defaults.get(task, ""))
        if served.artifact.manifest.task != task:
            name = served.artifact.name
            message = f"The model {name!r} does not read {TASKS[task].purpose}."
            raise ApiError(422, "wrong_task", message, {"task": served.artifact.manifest.task})
        return served

    def find(self, reference: str) -> Served:
        """The model called ``name`` or ``name:version``, whatever it reads.

        Raises:
            ApiError: 404 unknown_model; 422 remote_model for one that evaluations alone ask.
        """
        models, _ = self._served
        if reference in self.remote:
            message = f"The model {reference!r} is a remote endpoint, which only evaluations ask."
            raise ApiError(422, "remote_model", message)
        name, _, version = reference.partition(":")
        versions = sorted(models.get(name, {}), key=_by_number)
        if versions and not version:
            version = versions[-1]
        if version not in versions:
            message = f"There is no model {name[:100]!r}." if name else "There is no such model."
            if versions:
                message = f"The model {name!r} has no version {version[:100]!r}."
            raise ApiError(404, "unknown_model", message, {"known": sorted(models)})
        return models[name][version]

    def versions(self, name: str) -> list[str]:
        """The versions of a model, the highest last; none of a model that is not served."""
        models, _ = self._served
        return sorted(models.get(name, {}), key=_by_number)

    def is_default(self, served: Served) -> bool:
        """Whether this is what answers when nobody names a model."""
        _, defaults = self._served
        name = defaults.get(served.artifact.manifest.task)
        return name is not None and served is self.find(name)

    def all(self) -> list[Served]:
        """Every version of every model, the default models first, those of images before."""
        models, defaults = self._served
        first = [defaults[task] for task in TASKS if task in defaults]
        others = sorted(name for name in models if name not in first)
        return [models[name][v] for name in first + others for v in sorted(models[name])]

    def check_room(self, task: Task) -> None:
        """Refuse a request whose model is not known yet, when no model of its kind has room.

        Raises:
            ApiError: 503 overloaded.
        """
        refusal = None
        for served in self.all():
            if served.artifact.manifest.task != task:
                continue
            try:
                return served.batcher.check_room()
            except ApiError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    async def warm_up(self) -> None:
        """Run every model before the first request does."""
        loop = asyncio.get_running_loop()
        for served in self.all():
            await loop.run_in_executor(self.opener.executor, self.opener.warm_up, served)

    def swap(self, old: Served, new: Served) -> None:
        """Serve one in place of another, unless that has left; a newer card of it stays."""
        self.replace(
            [
                replace(new, artifact=served.artifact) if served.batcher is old.batcher else served
                for served in self.all()
            ]
        )

    async def ready(self) -> bool:
        """Whether there is a model, and every runtime answers now."""
        return bool(self.all()) and await self._readiness.ready()

    def close(self) -> None:
        """Let the running batch end and start no other."""
        self.opener.close()


def check_models(settings: Settings, remote: Collection[str] = ()) -> None:
    """Check what the settings say of models, before anything starts.

    Artifacts are opened in a process of their own. Runtimes that must be measured before anything
    can be served are measured there too, and their selections cached for the workers; see
    `RuntimeSelector` for the others.

    Raises:
        ValueError: an artifact is not sound, there is none, two have one name and version, one has
            the name of an endpoint (`remote`), the default model is not served, or the runtime is
            not there.
    """
    artifacts = _find_all(settings.models)
    _check_names(artifacts, settings, remote)
    options = selection_options(settings)
    at_once = settings.runtime == "auto" or (
        settings.runtime == REFERENCE and settings.precision == "exact"
    )
    try:
        if settings.runtime != "auto":
            require_runtime(settings.runtime)
        if at_once and all(map(runs_on_reference, artifacts)):
            require_openable(artifacts, settings)
        else:
            select_runtimes(artifacts, **options)
    except RuntimeUnavailable as error:
        raise ValueError(f"ASSAY_RUNTIME={settings.runtime}: {error}") from error


def _find_all(roots: Sequence[Path]) -> list[Artifact]:
    """The artifacts of all folders; an error names the setting and the folder."""
    found: list[Artifact] = []
    for root in roots:
        try:
            found += find_artifacts([root])
        except ArtifactError as error:
            raise ValueError(f"ASSAY_MODELS={root}: {error}") from error
        except OSError as error:
            raise ValueError(f"ASSAY_MODELS={root} cannot be read: {error.strerror}") from error
    return found


def _check_names(
    artifacts: Sequence[Artifact], settings: Settings, remote: Collection[str]
) -> None:
    """Refuse what cannot be served together, and a default model that is not served."""
    if not artifacts:
        folders = ", ".join(map(str, settings.models))
        raise ValueError(f"ASSAY_MODELS={folders} holds no artifact, a folder with {MANIFEST}")
    tasks = {artifact.name: artifact.manifest.task for artifact in artifacts}
    references = set()
    for artifact in artifacts:
        reference = f"{artifact.name}:{artifact.version}"
        if tasks[artifact.name] != artifact.manifest.task:
            raise ValueError(f"ASSAY_MODELS must use a name for one task, received {artifact.name}")
        if artifact.name in remote:
            raise ValueError(f"ASSAY_TARGETS must not use the name of a model, {artifact.name!r}")
        if reference in references:
            raise ValueError(f"ASSAY_MODELS must hold a version once, received {reference}")
        references.add(reference)
    for task, form in TASKS.items():
        field = form.default
        names = sorted(name for name in tasks if tasks[name] == task)
        if field in settings.model_fields_set and getattr(settings, field) not in names:
            known, wanted = ", ".join(names) or "there is none", getattr(settings, field)
            variable = f"ASSAY_{field.upper()}"
            raise ValueError(f"{variable} must be a served model ({known}), received {wanted!r}")


def _default(task: Task, models: Sequence[Served], settings: Settings) -> str | None:
    """The default among the models of a task; one that was asked for has no stand-in."""
    names = [served.artifact.name for served in models if served.artifact.manifest.task == task]
    field = TASKS[task].default
    wanted = getattr(settings, field)
    if wanted in names or field in settings.model_fields_set:
        return wanted if wanted in names else None
    return min(names, default=None)


def _by_number(version: str) -> list[tuple[bool, int, str]]:
    """Key that puts version 10 after version 9 and before a version that is a word."""
    parts = re.split(r"[.\-+_]", version)
    return [(not p.isdecimal(), int(p) if p.isdecimal() else 0, p) for p in parts]
