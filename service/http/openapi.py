"""The OpenAPI document of the running service, and its rendering as plain HTML."""

import html
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel
from starlette.routing import BaseRoute

API_VERSION = "1"
_REFERENCE = "#/components/schemas/{model}"
_FASTAPI_ERRORS = ("HTTPValidationError", "ValidationError")


class Problem(BaseModel):
    """What an error says: `code` for programs, `message` for people, `details` for both."""

    code: str
    message: str
    details: Any


class Error(BaseModel):
    """The body of every error."""

    error: Problem


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route: the errors beside 405."""
    return {status: {"model": Error} for status in sorted({405, *statuses})}


def file(media_type: str, *statuses: int) -> dict[str, Any]:
    """`responses` of a route that answers something other than JSON, and its errors."""
    success = {"content": {media_type: {"schema": {"type": "string"}}}}
    return {"responses": {200: success, **failures(*statuses)}}


def body(model: type[BaseModel], *, form: bool = False) -> dict[str, Any]:
    """`openapi_extra` of a route that validates its body with a model.

    Args:
        model: of JSON, or of the fields of a form.
        form: whether the body is multipart/form-data.
    """
    media_type = "multipart/form-data" if form else "application/json"
    schema = model.model_json_schema(ref_template=_REFERENCE)
    return {"requestBody": {"required": True, "content": {media_type: {"schema": schema}}}}


def document(routes: Iterable[BaseRoute], *, keys: bool) -> dict[str, Any]:
    """The document of the service as it runs.

    Args:
        routes: all of them.
        keys: whether keys are in use.
    """
    spec = get_openapi(title="Assay", version=API_VERSION, routes=list(routes))
    spec["servers"] = [{"url": "."}]
    schemas = spec.setdefault("components", {}).setdefault("schemas", {})
    for item in spec["paths"].values():
        for operation in item.values():
            _complete(operation, schemas, keys=keys)
    for name in _FASTAPI_ERRORS:
        schemas.pop(name, None)
    schemes = spec["components"].pop("securitySchemes", {})
    if keys:
        header = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        spec["components"]["securitySchemes"] = schemes | {"header": header}
    return spec


def _complete(operation: dict[str, Any], schemas: dict[str, Any], *, keys: bool) -> None:
    """Put shared schemas where they belong, and say what an operation needs."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schemas.update(content["schema"].pop("$defs", {}))
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]  # ours are named by the routes
    security = operation.pop("security", None)
    if not keys:
        return
    operation["security"] = []
    if security is not None:
        scopes = [scope for scheme in security for needed in scheme.values() for scope in needed]
        # Two ways to send the same key.
        operation["security"] = [{"bearer": scopes}, {"header": []}]
        error = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}}
        for status in (401, 403, 429) if scopes else (401, 429):
            responses[str(status)] = {"description": HTTPStatus(status).phrase, "content": error}


def render(spec: dict[str, Any]) -> str:
    """The document as a plain HTML page: no script, no inline style, nothing from the web."""
    sections = [
        _render_operation(method, path, operation)
        for path, item in spec["paths"].items()
        for method, operation in item.items()
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Assay API</title>'
        '<meta name="viewport" content="width=device-width"><link rel="stylesheet" '
        'href="style.css"></head><body class="docs"><main><h1>API</h1>'
        '<p><a href="./">Page</a> · <a href="docs.json">OpenAPI document</a></p>'
        f"{''.join(sections)}</main></body></html>"
    )


def _render_operation(method: str, path: str, operation: dict[str, Any]) -> str:
    fields = [p["name"] for p in operation.get("parameters", [])]
    for content in operation.get("requestBody", {}).get("content", {}).values():
        fields += content["schema"].get("properties", {})
    title = html.escape(f"{method.upper()} {path}")
    summary = html.escape(operation.get("description") or operation["summary"])
    inputs = html.escape(", ".join(fields)) or "none"
    answers = "".join(
        f"<li><b>{status}</b> {html.escape(answer['description'])}</li>"
        for status, answer in sorted(operation["responses"].items())
    )
    return f"<h2><code>{title}</code></h2><p>{summary}</p><p>Input: {inputs}</p><ul>{answers}</ul>"
