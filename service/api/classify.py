"""`POST /classify` and `POST /classify_text`."""

import json
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictBool
from starlette.routing import BaseRoute

from runtimes.tasks import IMAGES, TEXTS
from service.http.auth import access
from service.http.body import Bodies, File
from service.http.departure import while_connected
from service.http.documents import TEXTS_LIMIT, parse_body, require_type, unhurried
from service.http.openapi import body, failures
from service.predictions.images import DEFAULT_TOP_K, Prediction, Predictions, model_headers
from service.predictions.registry import Registry
from service.predictions.texts import TextPredictions

_ERRORS = (400, 404, 408, 413, 415, 422, 503, 504)


def plain(value: Any) -> Any:
    """A text field; BentoML's client writes it as JSON (``"name"``, ``null``)."""
    if value in ("", "null"):
        return None
    if isinstance(value, str) and value.startswith('"'):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _flag(value: Any) -> Any:
    return {"true": True, "false": False}.get(value, plain(value))


class ClassifyForm(BaseModel):
    """The form of `/classify`."""

    model_config = ConfigDict(extra="forbid")

    images: list[File] = Field(min_length=1)
    model: Annotated[str | None, BeforeValidator(plain)] = None
    top_k: Annotated[Annotated[int, Field(ge=1)] | None, BeforeValidator(plain)] = DEFAULT_TOP_K
    explain: Annotated[StrictBool | None, BeforeValidator(_flag)] = False
    show_input: Annotated[StrictBool | None, BeforeValidator(_flag)] = False


class TextRequest(BaseModel):
    """What `/classify_text` reads."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"texts": ["A moving film, brilliantly acted."]}]},
    )

    texts: list[str] = Field(max_length=TEXTS_LIMIT.items, fail_fast=True)
    model: str | None = None
    top_k: int | None = None
    explain: bool | None = None


@dataclass(frozen=True, slots=True)
class Classify:
    """The two routes."""

    predictions: Predictions
    texts: TextPredictions
    registry: Registry
    bodies: Bodies

    def routes(self) -> list[BaseRoute]:
        """`/classify` and `/classify_text`."""
        router = APIRouter(dependencies=access("predict"))
        answer: dict[str, Any] = {"methods": ["POST"], "response_model": list[Prediction]}
        answer["responses"] = failures(*_ERRORS)
        form, text = body(ClassifyForm, form=True), body(TextRequest)
        router.add_api_route("/classify", self.classify, openapi_extra=form, **answer)
        router.add_api_route("/classify_text", self.classify_text, openapi_extra=text, **answer)
        return router.routes

    async def classify(self, request: Request) -> Response:
        """Classify images."""
        self.registry.check_room(IMAGES)
        async with self.bodies.open(request) as sent:
            asked = await sent.form(ClassifyForm, max_files=self.predictions.max_files)
            served = self.registry.get(asked.model)
            async with while_connected(request):
                found = await self.predictions.predict(
                    [upload.content for upload in asked.images],
                    served,
                    top_k=asked.top_k or DEFAULT_TOP_K,
                    explain=bool(asked.explain),
                    show_input=bool(asked.show_input),
                    arrived=sent.arrived,
                    sharer=sent.sharer,
                )
        return JSONResponse(found, headers=model_headers(served))

    async def classify_text(self, request: Request) -> Response:
        """Classify texts."""
        require_type(request, "application/json")
        self.registry.check_room(TEXTS)
        async with self.bodies.open(request, max_bytes=TEXTS_LIMIT.size) as sent:
            content = await sent.read()
            read = partial(parse_body, TextRequest, content, TEXTS_LIMIT)
            asked = await unhurried(len(content), read)
            served = self.registry.get(asked.model or None, TEXTS)
            top_k = DEFAULT_TOP_K if asked.top_k is None else asked.top_k
            found = await self.texts.predict(
                asked.texts, served, top_k=top_k, explain=bool(asked.explain), arrived=sent.arrived
            )
        return JSONResponse(found, headers=model_headers(served))
