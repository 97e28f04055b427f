"""`POST /v1/evaluations/cost`: what is asked."""

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from robustness.spec import EvaluationSpec
from service.api.submission import check_spec
from service.http.errors import ApiError
from service.http.strict_json import parse_json, require_json

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["spec", "samples"],
    "additionalProperties": False,
    "properties": {"spec": {"type": "object"}, "samples": {"type": "integer", "minimum": 1}},
}


@dataclass(frozen=True, slots=True)
class CostRequest:
    """The spec of an evaluation, and how many inputs it would have."""

    spec: EvaluationSpec
    samples: int


async def read_cost_request(request: Request) -> CostRequest:
    """The body of a request.

    Raises:
        ApiError: 400 invalid_json; 415 wrong_content_type; 422 invalid_body or invalid_spec.
    """
    require_json(request)
    content = parse_json(await request.body(), "body")
    if not isinstance(content, dict) or set(content) != {"spec", "samples"}:
        raise _invalid("must be an object of `spec` and `samples`")
    samples = content["samples"]
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
        raise _invalid("must name in `samples` a whole number of inputs, at least 1")
    return CostRequest(check_spec(content["spec"]), samples)


def _invalid(rule: str) -> ApiError:
    return ApiError(422, "invalid_body", f"The body {rule}.")
