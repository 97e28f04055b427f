"""The OpenAPI document of the running service."""

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, Field, GetJsonSchemaHandler
from starlette.routing import BaseRoute

API_VERSION = "1"
_ABOUT = (
    "Classify images and texts with the served models, and evaluate these models under attack. "
    'Every error is `{"error": {"code", "message", "details"}}`.'
)
_REFERENCE = "#/components/schemas/{model}"
_FASTAPI_ERRORS = ("HTTPValidationError", "ValidationError")
_SECTIONS: dict[str, tuple[str, ...]] = {
    "Predictions": ("/classify",),
    "Evaluations": ("/v1/evaluations",),
    "Attacks and models": ("/v1/", "/samples"),
    "Open Inference Protocol V2": ("/v2",),
    "Service": ("/",),
}
"""How the addresses of each section begin; the first section that fits holds."""


CODES = {
    400: "bad_request incomplete_body invalid_csv invalid_header_length invalid_json "
    "invalid_tensor malformed_multipart unknown_host",
    401: "missing_key wrong_key",
    403: "cross_site missing_scope",
    404: "no_report no_such_sample not_found unknown_evaluation unknown_model",
    405: "method_not_allowed",
    408: "header_timeout upload_timeout",
    409: "evaluation_not_cancelled evaluation_not_finished idempotency_conflict",
    410: "evaluation_deleted",
    413: "archive_too_large body_too_large text_too_long too_many_pixels",
    415: "compressed_body format_not_taken not_a_file not_an_archive not_an_image not_multipart "
    "wrong_content_type",
    422: "ambiguous_images ambiguous_texts archive_too_costly broken_archive broken_image "
    "class_mismatch duplicate_field duplicate_tensor image_too_costly invalid_archive "
    "invalid_body invalid_FIELD invalid_idempotency_key invalid_inputs invalid_labels "
    "invalid_parameter invalid_query invalid_spec invalid_tensor invalid_text invalid_texts "
    "invalid_top_k labels_length missing_input no_FIELD no_images no_masks no_texts "
    "not_explainable not_loadable remote_model text_too_short too_expensive too_many_fields "
    "too_many_images too_many_inputs too_many_texts unknown_field unknown_input unknown_output "
    "unknown_parameter unsafe_archive wrong_inputs wrong_task",
    429: "rate_limited too_many_wrong_keys",
    503: "overloaded runtime_failed too_many_streams unavailable",
    504: "timeout",
    507: "disk_full",
}
"""The codes of errors by their status; a field's name stands for FIELD."""


class Problem(BaseModel):
    """What an error says: `code` for programs, `message` for people, `details` for both."""

    code: str = Field(description="a stable word; the answers name those of each status")
    message: str = Field(description="a sentence")
    details: Any = Field(description="more about it, as the code needs it")


class Error(BaseModel):
    """The body of every error."""

    error: Problem


@dataclass(frozen=True, slots=True)
class DescribedBy:
    """An annotation: a field is JSON of this model, which something else validates."""

    model: type[BaseModel]

    def __get_pydantic_json_schema__(self, _: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """The model's schema by reference, under the name that pydantic gives it elsewhere."""
        schema: Any = self.model.__pydantic_core_schema__
        parts = []
        if schema["type"] == "definitions":
            parts, schema = schema["definitions"], schema["schema"]
        ref = f"{self.model.__module__}.{self.model.__qualname__}:{id(self.model)}"
        return handler(
            {"type": "definitions", "schema": schema | {"ref": ref}, "definitions": parts}
        )


def failures(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """`responses` of a route: the errors beside 405."""
    return {status: {"model": Error} for status in sorted({405, *statuses})}


def file(media_type: str, *statuses: int) -> dict[str, Any]:
    """`responses` of a route that answers something other than JSON, and its errors."""
    # Before OpenAPI 3.2, readers differ on whether the schema of a stream is that of each event.
    schema = {} if media_type == "text/event-stream" else {"schema": {"type": "string"}}
    success = {"content": {media_type: schema}}
    return {"responses": {200: success, **failures(*statuses)}}


def body(model: type[BaseModel], *, form: bool = False) -> dict[str, Any]:
    """`openapi_extra` of a route that validates its body with a model.

    Args:
        model: of JSON, or of the fields of a form.
        form: whether the body is multipart/form-data; objects are sent in it as JSON.
    """
    schema = model.model_json_schema(ref_template=_REFERENCE)
    name, parts = model.__name__.lstrip("_"), schema.pop("$defs", {})
    reference = {"$ref": _REFERENCE.format(model=name)}
    content: dict[str, Any] = {"schema": reference | {"$defs": parts | {name: schema}}}
    if form:
        fields = schema["properties"]
        for field in fields.values():
            _fill_in(field)
        if objects := [name for name, field in fields.items() if "$ref" in field]:
            content["encoding"] = {name: {"contentType": "application/json"} for name in objects}
    media_type = "multipart/form-data" if form else "application/json"
    return {"requestBody": {"required": True, "content": {media_type: content}}}


def _fill_in(field: dict[str, Any]) -> None:
    """What a form cannot say is left out, and what may be left out begins empty in viewers."""
    if {"type": "null"} in field.get("anyOf", ()):
        (given,) = [each for each in field.pop("anyOf") if each != {"type": "null"}]
        field.update(given)
    if field.get("default", ...) in (None, []):
        del field["default"]
        field["examples"] = [[] if field["type"] == "array" else ""]


def document(routes: Iterable[BaseRoute], *, keys: bool) -> dict[str, Any]:
    """The document of the service as it runs.

    Args:
        routes: all of them.
        keys: whether keys are in use.
    """
    spec = get_openapi(title="Assay", version=API_VERSION, description=_ABOUT, routes=list(routes))
    spec["tags"] = [{"name": name} for name in _SECTIONS]
    spec["servers"] = [{"url": "."}]
    parts = spec.setdefault("components", {})
    schemas = parts.setdefault("schemas", {})
    for path, item in spec["paths"].items():
        for operation in item.values():
            operation["tags"] = [
                next(name for name, starts in _SECTIONS.items() if path.startswith(starts))
            ]
            _complete(operation, schemas, keys=keys)
    for name in _FASTAPI_ERRORS:
        schemas.pop(name, None)
    parts["responses"] = {f"Error{status}": _error(status) for status in CODES}
    schemes = parts.pop("securitySchemes", {})
    if keys:
        header = {"type": "apiKey", "in": "header", "name": "X-API-Key"}
        parts["securitySchemes"] = schemes | {"header": header}
    return spec


def _error(status: int) -> dict[str, Any]:
    """What all errors of a status have in common."""
    codes = ", ".join(f"`{code}`" for code in CODES[status].split())
    content = {"application/json": {"schema": {"$ref": _REFERENCE.format(model="Error")}}}
    return {"description": f"{HTTPStatus(status).phrase}: {codes}", "content": content}


def _complete(operation: dict[str, Any], schemas: dict[str, Any], *, keys: bool) -> None:
    """Put what is shared where it belongs, and say what an operation does and needs."""
    said, _, rest = operation.pop("description", operation["summary"]).partition("\n")
    operation["summary"] = said.removesuffix(".")
    if rest:
        operation["description"] = rest.strip()
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schemas.update(content["schema"].pop("$defs", {}))
    responses = operation["responses"]
    if "HTTPValidationError" in str(responses.get("422")):
        del responses["422"]  # ours are named by the routes
    security = operation.pop("security", None)
    if keys:
        operation["security"] = []
    if keys and security is not None:
        scopes = [scope for scheme in security for needed in scheme.values() for scope in needed]
        # Two ways to send the same key.
        operation["security"] = [{"bearer": scopes}, {"header": []}]
        responses |= {str(status): {} for status in ((401, 403, 429) if scopes else (401, 429))}
    for status in [status for status in responses if int(status) >= 400]:
        responses[status] = {"$ref": f"#/components/responses/Error{status}"}
