"""`POST /score`."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict
from starlette.routing import BaseRoute

from runtimes.tasks import LANGUAGE
from service.http.auth import access
from service.http.body import Bodies
from service.http.departure import while_connected
from service.http.documents import TEXTS_LIMIT, parse_body, require_type, unhurried
from service.http.openapi import body, failures
from service.predictions.images import model_headers
from service.predictions.registry import Registry
from service.predictions.scores import Scores, score
from service.predictions.texts import TextPredictions

_ERRORS = (400, 404, 408, 413, 415, 422, 503, 504)


class ScoreRequest(BaseModel):
    """What `/score` reads."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"text": "A moving film, brilliantly acted."}]},
    )

    text: str
    model: str | None = None


@dataclass(frozen=True, slots=True)
class Score:
    """The route."""

    texts: TextPredictions
    registry: Registry
    bodies: Bodies

    def routes(self) -> list[BaseRoute]:
        """`/score`."""
        router = APIRouter(dependencies=access("predict"))
        answer: dict[str, Any] = {"methods": ["POST"], "response_model": Scores}
        answer["responses"] = failures(*_ERRORS)
        router.add_api_route("/score", self.score, openapi_extra=body(ScoreRequest), **answer)
        return router.routes

    async def score(self, request: Request) -> Response:
        """Say how a language model is surprised by each token of a text."""
        require_type(request, "application/json")
        self.registry.check_room(LANGUAGE)
        async with self.bodies.open(request, max_bytes=TEXTS_LIMIT.size) as sent:
            content = await sent.read()
            read = partial(parse_body, ScoreRequest, content, TEXTS_LIMIT)
            asked = await unhurried(len(content), read)
            served = self.registry.get(asked.model or None, LANGUAGE)
            async with while_connected(request):
                found = await score(self.texts, asked.text, served, arrived=sent.arrived)
        return JSONResponse(found, headers=model_headers(served))
