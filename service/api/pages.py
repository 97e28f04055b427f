"""Routes of predictions, of the API's description, and of the web page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from service.http.openapi import describe, render
from service.http.queries import strict
from service.predictions.images import DEFAULT_TOP_K, Prediction, Predictions
from service.predictions.texts import TextPredictions, TextRequest

_PAGE = Path(__file__).parents[1] / "page"


def prediction_routes(predictions: Predictions, texts: TextPredictions) -> list[Route]:
    """`/classify` and `/classify_text`."""
    images = {"type": "array", "items": {"type": "string", "format": "binary"}, "minItems": 1}
    form = {
        "images": images,
        "model": {"type": "string"},
        "top_k": {"type": "integer", "minimum": 1, "default": DEFAULT_TOP_K},
        "explain": {"type": "boolean", "default": False},
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
        Route("/classify", strict(classify), methods=["POST"]),
        Route("/classify_text", strict(classify_text), methods=["POST"]),
    ]


def schema_route(schema: Mapping[str, Any]) -> Route:
    """`/schema.json`: what BentoML's clients read first."""

    @describe(answer=dict[str, Any])
    async def schema_json(_: Request) -> Response:
        """The two prediction routes, as BentoML's clients want to know them."""
        return JSONResponse(schema)

    return Route("/schema.json", schema_json)


def documentation_routes(document: Mapping[str, Any]) -> list[Route]:
    """`/docs.json` and `/docs`."""
    page = render(dict(document))

    async def docs_json(_: Request) -> Response:
        """The OpenAPI document."""
        return JSONResponse(document)

    async def docs(_: Request) -> Response:
        """The same, to read."""
        return HTMLResponse(page)

    return [Route("/docs.json", docs_json), Route("/docs", docs)]


def page_routes(folder: Path = _PAGE) -> list[Route]:
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
