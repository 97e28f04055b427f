"""The routes of the protocol."""

import asyncio
from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.api.v2 import descriptions
from service.api.v2.inputs import read_images, read_texts, the_input
from service.api.v2.outputs import answer, forms
from service.api.v2.request import InferRequest, Tensor, json_length, parse
from service.http.bodies import Bodies
from service.http.errors import ApiError, foreign_error
from service.http.openapi import describe
from service.http.queries import strict
from service.http.strict_json import parse_json
from service.predictions.images import model_headers
from service.predictions.registry import Registry
from service.predictions.reload import Reloader
from service.predictions.served import IMAGES, Served
from service.predictions.texts import TextPredictions
from service.settings import Settings

_KINDS = ("", "application/json", "application/octet-stream")
_MODEL = "/v2/models/{name}"
_VERSION = _MODEL + "/versions/{version}"
_REPOSITORY_ERRORS = (400, 404, 408, 413, 415, 422, 503)
_INFER_ERRORS = (400, 404, 408, 413, 415, 422, 503, 504)


class _Options(BaseModel):
    """The body of a request to the repository; parameters that would be ignored are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ready: bool = False
    parameters: dict[str, bool] = {}


class V2:
    """Answers the protocol with the models of a registry.

    Args:
        settings: limits.
        registry: the models.
        reloader: loads and unloads them.
        texts: reads texts.
        bodies: bounds what is read at a time.
    """

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        reloader: Reloader,
        *,
        texts: TextPredictions,
        bodies: Bodies,
    ) -> None:
        self._settings, self._registry, self._reloader = settings, registry, reloader
        self._texts, self._bodies = texts, bodies

    def routes(self) -> list[Route]:
        """All routes of the protocol."""
        get = [
            ("/v2", self.server),
            ("/v2/health/live", self.live),
            ("/v2/health/ready", self.ready),
            ("/v2/models/stats", self.all_statistics),
        ]
        post = [
            ("/v2/repository/index", self.index),
            ("/v2/repository/models/{name}/load", self.load),
            ("/v2/repository/models/{name}/unload", self.unload),
        ]
        for prefix in (_MODEL, _VERSION):
            get += [
                (prefix, self.model),
                (f"{prefix}/ready", self.model_ready),
                (f"{prefix}/config", self.config),
                (f"{prefix}/stats", self.statistics),
            ]
            post.append((f"{prefix}/infer", self.infer))
        return [
            *(Route(path, strict(endpoint), methods=["GET"]) for path, endpoint in get),
            *(Route(path, strict(endpoint), methods=["POST"]) for path, endpoint in post),
        ]

    @describe(answer=dict[str, Any], errors=(422,))
    async def server(self, _: Request) -> Response:
        """The server's name, version and extensions."""
        return JSONResponse(descriptions.server())

    @describe(answer=dict[str, bool], errors=(422,))
    async def live(self, _: Request) -> Response:
        """Whether the server runs."""
        return JSONResponse({"live": True})

    @describe(answer=dict[str, bool], errors=(422, 503))
    async def ready(self, _: Request) -> Response:
        """Whether every model answers."""
        if not await self._registry.ready():
            raise foreign_error(503)
        return JSONResponse({"ready": True})

    @describe(answer=dict[str, Any], errors=(404, 422))
    async def model(self, request: Request) -> Response:
        """A model's versions, inputs and outputs."""
        return JSONResponse(descriptions.model(self._served(request), self._registry))

    @describe(answer=dict[str, Any], errors=(404, 422, 503))
    async def model_ready(self, request: Request) -> Response:
        """Whether a model answers."""
        served = self._served(request)
        if served.runtime.failed:
            raise foreign_error(503)
        return JSONResponse({"name": served.artifact.name, "ready": True})

    @describe(answer=dict[str, Any], errors=(404, 422))
    async def config(self, request: Request) -> Response:
        """A model as a Triton configuration."""
        return JSONResponse(descriptions.config(self._served(request)))

    @describe(answer=dict[str, Any], errors=(404, 422))
    async def statistics(self, request: Request) -> Response:
        """What a model has done since it was opened."""
        version = request.path_params.get("version")
        name = self._served(request).artifact.name
        versions = [version] if version else self._registry.versions(name)
        found = [self._registry.find(f"{name}:{version}") for version in versions]
        return JSONResponse({"model_stats": [descriptions.statistics(each) for each in found]})

    @describe(answer=dict[str, Any], errors=(422,))
    async def all_statistics(self, _: Request) -> Response:
        """What every model has done since it was opened."""
        rows = [descriptions.statistics(served) for served in self._registry.all()]
        return JSONResponse({"model_stats": rows})

    @describe(
        answer=list[dict[str, str]], body=_Options.model_json_schema(), errors=(400, 413, 422)
    )
    async def index(self, request: Request) -> Response:
        """Every model of the folders, served or not."""
        options = await self._options(request)
        rows = descriptions.index(self._registry, self._reloader, only_ready=options.ready)
        return JSONResponse(rows)

    @describe(answer=dict[str, Any], body=_Options.model_json_schema(), errors=(400, 404, 413, 422))
    async def load(self, request: Request) -> Response:
        """Serve a model that was unloaded, or has just been put into a folder."""
        await self._options(request)
        await self._reloader.load(request.path_params["name"])
        return JSONResponse({})

    @describe(answer=dict[str, Any], body=_Options.model_json_schema(), errors=(400, 404, 413, 422))
    async def unload(self, request: Request) -> Response:
        """Serve a model no longer."""
        await self._options(request, "unload_dependents")
        await self._reloader.unload(request.path_params["name"])
        return JSONResponse({})

    @describe(answer=dict[str, Any], body=InferRequest.model_json_schema(), errors=_INFER_ERRORS)
    async def infer(self, request: Request) -> Response:
        """Outputs of a model for tensors, as JSON or as bytes behind the JSON."""
        arrived = asyncio.get_running_loop().time()
        served = self._served(request)
        _check_kind(request)
        served.batcher.check_room()
        async with self._bodies.read(request, arrived=arrived) as body:
            length = json_length(request.headers.get("inference-header-content-length"), body)
            self._bodies.check_json(length)
            asked = parse(body, length)
            wanted = forms(asked)
            logits = await self._logits(asked, served, arrived)
        head = {"model_name": served.artifact.name, "model_version": served.artifact.version}
        if asked.id is not None:
            head["id"] = asked.id
        response = answer(logits, served.artifact.labels, wanted, head)
        response.headers.update(model_headers(served))
        return response

    async def _logits(self, asked: InferRequest, served: Served, arrived: float) -> np.ndarray:
        settings = self._settings
        if served.artifact.manifest.task == IMAGES:
            tensor = the_input(asked, served.artifact, settings.max_images_classify)
            return await _image_logits(tensor, served, arrived)
        tensor = the_input(asked, served.artifact, settings.max_texts_classify)
        return await self._texts.logits(read_texts(tensor), served, arrived=arrived)

    def _served(self, request: Request) -> Served:
        name, version = request.path_params["name"], request.path_params.get("version")
        return self._registry.find(name if version is None else f"{name}:{version}")

    async def _options(self, request: Request, *known: str) -> _Options:
        arrived = asyncio.get_running_loop().time()
        async with self._bodies.read(request, arrived=arrived) as body:
            self._bodies.check_json(len(body))
            content = parse_json(body, "body") if body.strip() else {}
        try:
            options = _Options.model_validate(content)
        except ValidationError as error:
            message = "The body may hold 'ready' and 'parameters'; models come from folders alone."
            raise ApiError(422, "invalid_body", message) from error
        for name in options.parameters:
            if name not in known:
                message = f"The parameter {name[:64]!r} is not known here."
                raise ApiError(422, "unknown_parameter", message, {"known": list(known)})
        return options


async def _image_logits(tensor: Tensor, served: Served, arrived: float) -> np.ndarray:
    images = read_images(tensor)

    async def read() -> np.ndarray:
        """The pixels, which are there already."""
        return images

    async with served.batcher.turn(len(images), arrived=arrived) as turn:
        return await turn.predict(read)


def _check_kind(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _KINDS:
        message = "The body must be application/json, or application/octet-stream with tensors."
        raise ApiError(415, "wrong_content_type", message)
