"""Our own routes and the way every request takes: checks first, then our routes, then BentoML's.

BentoML tries the routes of its APIs before those of a mounted application, and its reading of
forms is not safe (see `service.forms`). So this middleware answers what is ours, `/classify`
included, and leaves `/livez`, `/readyz`, `/metrics` and `/schema.json` to BentoML.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import ApiError, ErrorShape, handle_api_error
from service.limits import BodyLimit, SecurityHeaders
from service.openapi import describe, document, render
from service.predictions import Prediction, Predictions
from service.settings import Settings
from service.texts import TextPredictions, TextRequest

_PAGE = Path(__file__).parent / "page"


def create_site() -> Starlette:
    """An empty site; `fill` gives it its routes when the models are open."""
    return Starlette(exception_handlers={ApiError: handle_api_error})


class Front:
    """ASGI middleware: limits, security headers and error shape around `site`, then `app`."""

    def __init__(self, app: ASGIApp, *, site: Starlette, settings: Callable[[], Settings]) -> None:
        self._bentoml = app
        self._site = site
        limits = settings()
        limited = BodyLimit(
            self._dispatch, limits.max_body_bytes, timeout_s=limits.upload_timeout_s
        )
        self._app = SecurityHeaders(ErrorShape(limited))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one ASGI connection."""
        await self._app(scope, receive, send)

    async def _dispatch(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and any(
            route.matches(scope)[0] is not Match.NONE for route in self._site.routes
        )
        await (self._site if ours else self._bentoml)(scope, receive, send)


def fill(
    site: Starlette,
    routes: Iterable[BaseRoute],
    *,
    predictions: Predictions,
    texts: TextPredictions,
    base_document: dict[str, Any],
) -> None:
    """Replace the routes of `site`.

    Args:
        site: from `create_site`.
        routes: all that are neither predictions, nor the page, nor the documentation.
        predictions: answers ``/classify``.
        texts: answers ``/classify_text``.
        base_document: BentoML's OpenAPI document.
    """
    own = [*_prediction_routes(predictions, texts), *routes]
    spec = document(base_document, own)

    async def docs_json(_: Request) -> Response:
        """The OpenAPI document."""
        return JSONResponse(spec)

    async def docs(_: Request) -> Response:
        """The same, to read."""
        return HTMLResponse(render(spec))

    site.router.routes[:] = [
        *own,
        Route("/docs.json", docs_json),
        Route("/docs", docs),
        *_page_routes(_PAGE),
    ]


def _prediction_routes(predictions: Predictions, texts: TextPredictions) -> list[Route]:
    images = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    form = {
        "images": images,
        "model": {"type": "string"},
        "top_k": {"type": "integer", "minimum": 1, "default": 5},
    }
    errors = (400, 404, 408, 413, 415, 422, 503, 504)

    @describe(
        answer=list[Prediction],
        form=form,
        required=["images"],
        errors=errors,
    )
    async def classify(request: Request) -> Response:
        """Classify images."""
        return await predictions.answer(request)

    @describe(answer=list[Prediction], body=TextRequest.model_json_schema(), errors=errors)
    async def classify_text(request: Request) -> Response:
        """Classify texts."""
        return await texts.answer(request)

    return [
        Route("/classify", classify, methods=["POST"]),
        Route("/classify_text", classify_text, methods=["POST"]),
    ]


def _page_routes(folder: Path) -> list[Route]:
    """A route for each file of the page, and `/` for its index."""

    def static(address: str, path: Path) -> Route:
        """The route of one file."""

        async def file(_: Request) -> Response:
            """The file; the browser asks each time whether it has changed."""
            return FileResponse(path, headers={"cache-control": "no-cache"})

        return Route(address, file, include_in_schema=False)

    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    return [
        static("/", folder / "index.html"),
        *(static(f"/{path.name}", path) for path in files),
    ]
