"""`POST /segment`."""

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from starlette.routing import BaseRoute

from runtimes.tasks import MASKS
from service.api.classify import plain
from service.http.auth import access
from service.http.body import Bodies, File
from service.http.departure import while_connected
from service.http.openapi import body, failures
from service.predictions.images import Predictions, model_headers
from service.predictions.registry import Registry
from service.predictions.segmentation import Segmentation, segment

_ERRORS = (400, 404, 408, 413, 415, 422, 503, 504)


class SegmentForm(BaseModel):
    """The form of `/segment`."""

    model_config = ConfigDict(extra="forbid")

    image: list[File] = Field(min_length=1)  # one
    model: Annotated[str | None, BeforeValidator(plain)] = None


@dataclass(frozen=True, slots=True)
class Segment:
    """The route."""

    predictions: Predictions
    registry: Registry
    bodies: Bodies

    def routes(self) -> list[BaseRoute]:
        """`/segment`."""
        router = APIRouter(dependencies=access("predict"))
        answer: dict[str, Any] = {"methods": ["POST"], "response_model": Segmentation}
        answer["responses"] = failures(*_ERRORS)
        form = body(SegmentForm, form=True)
        router.add_api_route("/segment", self.segment, openapi_extra=form, **answer)
        return router.routes

    async def segment(self, request: Request) -> Response:
        """Name the class of each pixel of an image."""
        self.registry.check_room(MASKS)
        async with self.bodies.open(request) as sent:
            asked = await sent.form(SegmentForm, max_files=1)
            served = self.registry.get(asked.model, MASKS)
            async with while_connected(request):
                found = await segment(
                    self.predictions,
                    asked.image[0].content,
                    served,
                    arrived=sent.arrived,
                    sharer=sent.sharer,
                )
        return JSONResponse(found, headers=model_headers(served))
