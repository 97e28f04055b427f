"""What is served, in JSON: the models, the limits and the sample images."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles
from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from data.labels import normalize
from runtimes.artifact import Artifact
from runtimes.manifest import InputSpec, TokensSpec
from runtimes.tasks import Task
from service.http.auth import access
from service.http.openapi import failures, file
from service.predictions.registry import Registry
from service.predictions.served import Served
from service.settings import Settings

_LIMITS: set[str] = {
    *"image_formats max_body_mb max_pixels max_images_classify max_texts_classify".split(),
    *"max_text_chars archive_max_mb evaluation_max_samples evaluation_max_steps".split(),
    *"evaluation_max_eps evaluation_max_queries evaluation_max_directions".split(),
    "evaluation_max_attacks",
}

Access = Literal["gradient", "weights", "token-wise", "graph", "scores", "label", "none"]
_ACCESS: tuple[Access, ...] = get_args(Access)  # as attacks name it


class ModelDescription(TypedDict):
    """A model that is served (`catalog`: of an architecture of ours, or `imported`), or `remote`.

    `measuring` says that runtimes are being compared for it, `gradients` whether attacks can
    follow them, `access` what they see: an attack can be tried whose own `access` is among it;
    "weights" are those of a model that proofs know, "token-wise" where its tokens do not see
    each other, "graph" where it is served in fp32. A remote model is evaluated only; nothing is
    known of its architecture, and of the `input` of texts.
    """

    name: str
    version: str
    default: bool
    digest: str
    task: Task
    kind: Literal["catalog", "imported", "remote"]
    architecture: str | None
    runtime: str
    precision: str
    gradients: bool
    access: list[Access]
    measuring: bool
    labels: list[str]
    input: InputSpec | TokensSpec | None
    preprocessing: dict[str, Any]
    metrics: dict[str, Any]
    card: dict[str, Any] | None


class SampleImage(TypedDict):
    """An image to try, at `/samples/FILE`; `index` is null where no model knows the label."""

    file: str
    label: str
    index: int | None


def routes(
    settings: Settings, registry: Registry, remote: Sequence[dict[str, Any]] = ()
) -> list[BaseRoute]:
    """The routes ``/v1/models``, with `remote` ones at the end, ``/v1/limits`` and ``/samples``."""
    router = APIRouter(dependencies=access(strict=False))
    samples = sample_index(settings.samples, registry)
    files = StaticFiles(directory=settings.samples, check_dir=False)

    @router.get("/v1/models", response_model=list[ModelDescription], responses=failures())
    async def models() -> Response:
        """The served models, and the remote ones that evaluations may ask."""
        own = [describe_model(served, registry) for served in registry.all()]
        return JSONResponse([*own, *remote])

    @router.get("/v1/models/{name}", response_model=ModelDescription, responses=failures(404))
    async def model(name: str) -> Response:
        """One model, by `name` or `name:version`."""
        found = next((each for each in remote if each["name"] == name), None)
        return JSONResponse(found or describe_model(registry.find(name), registry))

    @router.get("/v1/limits", response_model=dict[str, Any], responses=failures())
    async def limits() -> Response:
        """What the service takes at most, and which image formats."""
        return JSONResponse(limits_of(settings))

    @router.get("/samples/index.json", response_model=list[SampleImage], responses=failures())
    async def index() -> Response:
        """Images to try, with their labels."""
        return JSONResponse(samples)

    @router.get("/samples/{path:path}", response_class=Response, **file("image/png", 404))
    async def sample(path: str, request: Request) -> Response:
        """One of these images."""
        return await files.get_response(path, request.scope)

    return router.routes


def describe_model(served: Served, registry: Registry) -> dict[str, Any]:
    """A model as ``/v1/models`` shows it."""
    artifact, manifest = served.artifact, served.artifact.manifest
    there = {
        "gradient": manifest.gradients,
        "weights": manifest.provable,
        "token-wise": manifest.token_wise,
        "graph": manifest.readable_graph,
    }
    return {
        "name": artifact.name,
        "version": artifact.version,
        "default": registry.is_default(served),
        "digest": artifact.digest,
        "task": manifest.task,
        "kind": "imported" if manifest.source else "catalog",
        "architecture": manifest.architecture,
        "runtime": served.runtime.name,
        "precision": served.runtime.precision,
        "gradients": manifest.gradients,
        "access": [one for one in _ACCESS if there.get(one, True)],
        "measuring": artifact.digest in registry.measuring,
        "labels": list(artifact.labels),
        "input": manifest.model_dump(mode="json")["input"],
        "preprocessing": _preprocessing(artifact),
        "metrics": manifest.metrics,
        "card": artifact.card,
    }


def limits_of(settings: Settings) -> dict[str, Any]:
    """The settings that senders must keep to, by their names without ``ASSAY_``."""
    return settings.model_dump(mode="json", include=_LIMITS)


def _preprocessing(artifact: Artifact) -> dict[str, Any]:
    if artifact.manifest.reads == "images":
        return artifact.image_spec.to_dict()
    return dataclasses.asdict(artifact.text_spec)


def sample_index(folder: Path, registry: Registry) -> list[dict[str, Any]]:
    """The images ``set/label/name.png`` below a folder, each with the label a model knows it by."""
    known = {
        normalize(label): (label, index)
        for served in reversed(registry.all())  # so that the default model's names win
        for index, label in enumerate(served.artifact.labels)
    }
    entries = []
    for path in sorted(folder.glob("*/*/*.png")):
        label, index = known.get(normalize(path.parent.name), (path.parent.name, None))
        file = path.relative_to(folder).as_posix()
        entries.append({"file": file, "label": label, "index": index})
    return entries
