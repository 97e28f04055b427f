"""The routes of the protocol."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.routing import BaseRoute

from data.tokenizer import Reading
from runtimes.artifact import Artifact
from runtimes.tasks import TASKS
from service.api.v2 import answers
from service.api.v2.answers import answer, forms
from service.api.v2.tensors import (
    InferRequest,
    check_parameters,
    json_length,
    parse,
    read_images,
    read_texts,
    the_input,
)
from service.http.auth import access
from service.http.body import Bodies
from service.http.documents import (
    SMALL_LIMIT,
    TEXTS_LIMIT,
    parse_json,
    require_type,
    unhurried,
)
from service.http.errors import ApiError, foreign_error
from service.http.openapi import body as documented
from service.http.openapi import failures
from service.predictions.images import model_headers
from service.predictions.registry import Registry
from service.predictions.reload import Reloader
from service.predictions.served import Served
from service.predictions.texts import TextPredictions
from service.settings import Settings

_NUMBERS = 1 << 23  # of the logits of a language model in one answer
_TYPES = ("", "application/json", "application/octet-stream")
_MODEL = "/v2/models/{name}"
_VERSION = _MODEL + "/versions/{version}"
_JSON: dict[str, Any] = {"response_model": dict[str, Any]}
_READ_ERRORS = (400, 408, 413, 415, 422, 503)
_VERSIONED = {
    "parameters": [
        {"name": "version", "in": "path", "required": True, "schema": {"type": "string"}}
    ]
}


class _Options(BaseModel):
    """The body of a request to the repository; parameters that would be ignored are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{}]})

    ready: bool = False
    parameters: dict[str, bool] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class V2:
    """Answers the protocol with the models of a registry."""

    settings: Settings
    registry: Registry
    reloader: Reloader
    texts: TextPredictions
    bodies: Bodies

    def routes(self) -> list[BaseRoute]:
        """All routes of the protocol."""
        router = APIRouter(dependencies=access("predict"))
        self._add_models(router)
        add = router.add_api_route
        add("/v2", self.server, responses=failures(422), **_JSON)
        add("/v2/health/live", self.live, responses=failures(422), **_JSON)
        add("/v2/health/ready", self.ready, responses=failures(422, 503), **_JSON)
        options: dict[str, Any] = {"methods": ["POST"], "openapi_extra": documented(_Options)}
        index = {"response_model": list[dict[str, str]], "responses": failures(*_READ_ERRORS)}
        add("/v2/repository/index", self.index, **options, **index)
        admin = APIRouter(dependencies=access("admin"))
        options |= {"responses": failures(404, *_READ_ERRORS), **_JSON}
        for name, endpoint in (("load", self.load), ("unload", self.unload)):
            admin.add_api_route(f"/v2/repository/models/{{name}}/{name}", endpoint, **options)
        return [*router.routes, *admin.routes]

    def _add_models(self, router: APIRouter) -> None:
        """The routes of models, and of their versions."""
        add = router.add_api_route
        infer = documented(InferRequest)
        infer_errors = {"responses": failures(404, 504, *_READ_ERRORS)}
        add("/v2/models/stats", self.all_statistics, responses=failures(422), **_JSON)
        for prefix, extra in ((_MODEL, {}), (_VERSION, _VERSIONED)):
            post: dict[str, Any] = {"methods": ["POST"], "openapi_extra": infer | extra}
            add(f"{prefix}/infer", self.infer, **post, **infer_errors, **_JSON)
            get: dict[str, Any] = {"openapi_extra": extra, **_JSON}
            add(prefix, self.model, responses=failures(404, 422), **get)
            add(f"{prefix}/ready", self.model_ready, responses=failures(404, 422, 503), **get)
            add(f"{prefix}/config", self.config, responses=failures(404, 422), **get)
            add(f"{prefix}/stats", self.statistics, responses=failures(404, 422), **get)

    async def server(self) -> Response:
        """The server's name, version and extensions."""
        return JSONResponse(answers.server())

    async def live(self) -> Response:
        """Whether the server runs."""
        return JSONResponse({"live": True})

    async def ready(self) -> Response:
        """Whether every model answers."""
        if not await self.registry.ready():
            raise foreign_error(503)
        return JSONResponse({"ready": True})

    async def model(self, request: Request, name: str) -> Response:
        """A model's versions, inputs and outputs."""
        return JSONResponse(answers.model(self._served(request, name), self.registry))

    async def model_ready(self, request: Request, name: str) -> Response:
        """Whether a model answers."""
        served = self._served(request, name)
        if served.runtime.failed:
            raise foreign_error(503)
        return JSONResponse({"name": served.artifact.name, "ready": True})

    async def config(self, request: Request, name: str) -> Response:
        """A model as a Triton configuration."""
        return JSONResponse(answers.config(self._served(request, name)))

    async def statistics(self, request: Request, name: str) -> Response:
        """What a model has done since it was opened."""
        version = request.path_params.get("version")
        self._served(request, name)
        versions = [version] if version else self.registry.versions(name)
        found = [self.registry.find(f"{name}:{version}") for version in versions]
        return JSONResponse({"model_stats": [answers.statistics(each) for each in found]})

    async def all_statistics(self) -> Response:
        """What every model has done since it was opened."""
        rows = [answers.statistics(served) for served in self.registry.all()]
        return JSONResponse({"model_stats": rows})

    async def index(self, request: Request) -> Response:
        """Every model of the folders, served or not."""
        options = await self._options(request)
        rows = answers.index(self.registry, self.reloader, only_ready=options.ready)
        return JSONResponse(rows)

    async def load(self, request: Request, name: str) -> Response:
        """Serve a model that was unloaded, or has just been put into a folder."""
        await self._options(request)
        await self.reloader.load(name)
        return JSONResponse({})

    async def unload(self, request: Request, name: str) -> Response:
        """Serve a model no longer."""
        await self._options(request, "unload_dependents")
        await self.reloader.unload(name)
        return JSONResponse({})

    async def infer(self, request: Request, name: str) -> Response:
        """Outputs of a model for tensors, as JSON or as bytes behind the JSON."""
        served = self._served(request, name)
        require_type(request, *_TYPES)
        served.batcher.check_room()
        header = request.headers.get("inference-header-content-length")
        largest = None if header else self._max_json
        if served.artifact.manifest.reads == "texts":
            largest = TEXTS_LIMIT.size
        async with self.bodies.open(request, max_bytes=largest) as sent:
            body = await sent.read()
            length = json_length(header, body)
            asked, inputs = await unhurried(length, partial(self._read, body, length, served))
            task = TASKS[served.artifact.manifest.task]
            wanted = forms(asked, several=task.per_pixel or not task.labeled)
            logits, readings = await self._logits(inputs, served, sent.arrived)
        head = answers.head(served, asked, readings)
        axis = task.class_axis
        response = answer(logits, served.artifact.labels, wanted, head, class_axis=axis)
        response.headers.update(model_headers(served))
        return response

    def _read(
        self, body: bytes, length: int, served: Served
    ) -> tuple[InferRequest, np.ndarray | list[str]]:
        """What is asked for, and the model's input."""
        settings = self.settings
        asked = parse(body, length, self._max_json)
        if served.artifact.manifest.reads == "images":
            tensor = the_input(asked, served.artifact, settings.max_images_classify)
            return asked, read_images(tensor)
        tensor = the_input(asked, served.artifact, self._most_texts(served.artifact))
        return asked, read_texts(tensor)

    async def _logits(
        self, inputs: np.ndarray | list[str], served: Served, arrived: float
    ) -> tuple[np.ndarray, list[Reading]]:
        if isinstance(inputs, list):
            return await self.texts.logits(inputs, served, arrived=arrived)

        async def read() -> np.ndarray:
            """The pixels, which are there already."""
            return inputs

        async with served.batcher.admission(len(inputs), arrived=arrived) as admitted:
            return await admitted.predict(read), []

    def _most_texts(self, artifact: Artifact) -> int:
        """Rows that one request may have: of language models their answers are large."""
        numbers = math.prod(abs(size) for size in artifact.manifest.output.shape[1:])
        if TASKS[artifact.manifest.task].labeled:
            return self.settings.max_texts_classify
        most = _NUMBERS // (artifact.text_spec.max_len * numbers)
        return min(self.settings.max_texts_classify, max(1, most))

    @property
    def _max_json(self) -> int:
        return int(self.settings.max_json_mb * 1_000_000)

    def _served(self, request: Request, name: str) -> Served:
        version = request.path_params.get("version")
        return self.registry.find(name if version is None else f"{name}:{version}")

    async def _options(self, request: Request, *known: str) -> _Options:
        require_type(request, *_TYPES)
        async with self.bodies.open(request, max_bytes=SMALL_LIMIT.size) as sent:
            body = await sent.read()
            content = parse_json(body, "body", SMALL_LIMIT) if body.strip() else {}
        try:
            options = _Options.model_validate(content)
        except ValidationError as error:
            message = "The body may hold 'ready' and 'parameters'; models come from folders alone."
            raise ApiError(422, "invalid_body", message) from error
        check_parameters(options.parameters, known, "request")
        return options
