"""One OpenAPI document of all routes, and its rendering as plain HTML.

A route describes itself: `describe` marks its endpoint, and `document` collects the marks.
"""

import html
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter
from starlette.routing import BaseRoute, Route

from service.http.access import Access

API_VERSION = "1"
_REFERENCE = "#/components/schemas/{model}"
_MARK = "__openapi__"
_Endpoint = TypeVar("_Endpoint", bound=Callable[..., Any])

# Two ways to send the same key.
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "details"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "details": {},
            },
        }
    },
}
_PHRASES = {
    400: "Malformed",
    401: "No key, or a wrong one",
    403: "The key lacks the scope",
    404: "Unknown",
    405: "Method not allowed",
    408: "Too slow",
    409: "Conflict",
    410: "Deleted",
    413: "Too large",
    415: "Wrong type",
    422: "Not acceptable",
    429: "Too many requests, or too many waiting",
    503: "Overloaded",
    504: "Too slow",
    507: "Disk full",
}


def describe(
    *,
    answer: Any = None,
    status: int = 200,
    media_type: str = "application/json",
    form: Mapping[str, Any] | None = None,
    required: Iterable[str] = (),
    body: Mapping[str, Any] | None = None,
    query: Mapping[str, Any] | None = None,
    errors: Iterable[int] = (),
    empty: int | None = None,
) -> Callable[[_Endpoint], _Endpoint]:
    """Mark an endpoint with its OpenAPI description; its docstring's first line is the summary.

    Args:
        answer: type of the JSON answer, as pydantic understands it.
        status: HTTP status of success.
        media_type: of the answer.
        form: JSON schema of each multipart field.
        required: names of the form fields that must be given.
        body: JSON schema of a body in JSON.
        query: JSON schema of each query parameter.
        errors: HTTP statuses of the errors beside 405.
        empty: HTTP status of a second kind of success, without a body.
    """
    operation: dict[str, Any] = {"status": status, "answer": answer, "empty": empty}
    operation |= {"media_type": media_type, "query": query or {}}
    operation["errors"] = sorted({405, *errors})
    if form is not None:
        schema = {"type": "object", "properties": dict(form), "required": list(required)}
        content = {"multipart/form-data": {"schema": schema}}
        operation["body"] = {"required": True, "content": content}
    if body is not None:
        content = {"application/json": {"schema": dict(body)}}
        operation["body"] = {"required": True, "content": content}

    def mark(endpoint: _Endpoint) -> _Endpoint:
        """Attach the description."""
        setattr(endpoint, _MARK, operation)
        return endpoint

    return mark


def query_names(endpoint: Callable[..., Any]) -> tuple[str, ...]:
    """The query parameters that an endpoint's description names."""
    return tuple(getattr(endpoint, _MARK)["query"])


def document(
    routes: Iterable[BaseRoute], *, access: Callable[[str], Access] | None = None
) -> dict[str, Any]:
    """The document of the service as it runs.

    Args:
        routes: all of them; one without a description appears with its name.
        access: what a route needs, by its template; None when keys are off.
    """
    schemas: dict[str, Any] = {"Error": _ERROR}
    paths: dict[str, Any] = {}
    for route in routes:
        if isinstance(route, Route) and route.include_in_schema:
            for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
                operation = _operation(route, method, schemas)
                if access is not None:
                    _lock(operation, access(route.path))
                paths.setdefault(route.path_format, {})[method.lower()] = operation
    components: dict[str, Any] = {"schemas": schemas}
    if access is not None:
        components["securitySchemes"] = _SCHEMES
    return {
        "openapi": "3.0.2",
        "info": {"title": "Assay", "version": API_VERSION},
        "servers": [{"url": "."}],
        "paths": paths,
        "components": components,
    }


def _lock(operation: dict[str, Any], access: Access) -> None:
    """Say what an operation needs, where keys are in use."""
    if access == "free":
        operation["security"] = []
        return
    operation["security"] = [{name: []} for name in _SCHEMES]
    scope = "any scope" if access == "any" else f"the scope {access!r}"
    operation["description"] = f"Needs a key with {scope}."
    statuses = (401, 429) if access == "any" else (401, 403, 429)
    operation["responses"] = dict(sorted((operation["responses"] | _failures(statuses)).items()))


def _operation(route: Route, method: str, schemas: dict[str, Any]) -> dict[str, Any]:
    mark = getattr(route.endpoint, _MARK, {"status": 200, "errors": [405]})
    summary = (inspect.getdoc(route.endpoint) or route.name).splitlines()[0].rstrip(".")
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in route.param_convertors
    ]
    parameters += [
        {"name": name, "in": "query", "schema": schema}
        for name, schema in mark.get("query", {}).items()
    ]
    operation: dict[str, Any] = {
        "summary": summary,
        "operationId": f"{method.lower()}_{route.path_format}".translate(
            str.maketrans("/.{}", "____")
        ),
        "parameters": parameters,
        "responses": {str(mark["status"]): _success(mark, schemas), **_failures(mark["errors"])},
    }
    if mark.get("empty") is not None:
        operation["responses"][str(mark["empty"])] = {"description": "Success"}
    if "body" in mark:
        operation["requestBody"] = mark["body"]
    return operation


def _success(mark: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    if mark.get("answer") is not None:
        schema = TypeAdapter(mark["answer"]).json_schema(ref_template=_REFERENCE)
        schemas.update(schema.pop("$defs", {}))
    media_type = mark.get("media_type", "application/json")
    return {"description": "Success", "content": {media_type: {"schema": schema}}}


def _failures(statuses: Iterable[int]) -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}}
    return {
        str(status): {"description": _PHRASES.get(status, "Error"), "content": content}
        for status in statuses
    }


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
    summary = html.escape(operation["summary"])
    inputs = html.escape(", ".join(fields)) or "none"
    answers = "".join(
        f"<li><b>{status}</b> {html.escape(answer['description'])}</li>"
        for status, answer in operation["responses"].items()
    )
    return f"<h2><code>{title}</code></h2><p>{summary}</p><p>Input: {inputs}</p><ul>{answers}</ul>"
