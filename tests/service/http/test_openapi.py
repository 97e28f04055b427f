"""The OpenAPI document says what the service takes and answers."""

import ast
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from starlette.testclient import TestClient

from robustness.spec import ATTACKS, EXAMPLES, EvaluationSpec
from service.decoding.pool import STATUS
from service.http.openapi import CODES
from service.settings import ROOT
from tests.service.conftest import png
from tests.service.front import FGSM

NOBODY_HEARS = {499}


@pytest.fixture(scope="module")
def spec(client: TestClient) -> dict[str, Any]:
    return client.get("/docs.json").json()


def problems(spec: dict[str, Any], schema: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with a value by a schema of the document."""
    validator = Draft202012Validator(schema | {"components": spec["components"]})
    return [error.message for error in validator.iter_errors(value)]


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        yield from (found for each in value.values() for found in references(each))
    elif isinstance(value, list):
        yield from (found for each in value for found in references(each))


def test_its_schemas_are_valid_and_every_reference_leads_somewhere(spec: dict[str, Any]) -> None:
    for schema in spec["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
    for reference in set(references(spec)):
        _, parts, kind, name = reference.split("/")
        assert name in spec[parts][kind], reference


def test_a_spec_holds_every_attack_with_its_fields(spec: dict[str, Any]) -> None:
    form = spec["paths"]["/v1/evaluations"]["post"]["requestBody"]["content"]["multipart/form-data"]
    assert form["encoding"] == {"spec": {"contentType": "application/json"}}
    schemas = spec["components"]["schemas"]
    schema = schemas["EvaluationForm"]["properties"]["spec"]
    assert schema["$ref"] == schemas["CostRequest"]["properties"]["spec"]["$ref"]
    attacks = schemas["EvaluationSpec"]["properties"]["attacks"]["items"]
    assert set(attacks["discriminator"]["mapping"]) == set(ATTACKS)
    for name, reference in attacks["discriminator"]["mapping"].items():
        fields = schemas[reference.rpartition("/")[2]]["properties"]
        assert fields["name"]["const"] == name and set(fields) == set(ATTACKS[name].model_fields)
        assert all("description" in field for key, field in fields.items() if key != "name")
    for example in EXAMPLES:
        EvaluationSpec.model_validate(example)
        assert problems(spec, schema, example) == []
    for wrong in ({}, {"attacks": [{"eps": ["1/255"]}]}, FGSM | {"epsilon": 1}, {"attacks": []}):
        assert problems(spec, schema, wrong)
    assert problems(spec, schema, {"attacks": [FGSM["attacks"][0] | {"steps": 3}]})


@pytest.mark.parametrize(
    ("method", "path", "options"),
    [
        ("post", "/classify", {"files": [("images", ("0.png", png()))]}),
        ("post", "/classify_text", {"json": {"texts": ["a good film", "😀"]}}),
        ("get", "/v1/models", {}),
        ("get", "/v1/attacks", {}),
        ("get", "/v1/evaluations", {}),
        ("get", "/samples/index.json", {}),
        ("post", "/v1/evaluations/cost", {"json": {"spec": FGSM, "samples": 3}}),
    ],
)
def test_answers_are_as_described(
    client: TestClient, spec: dict[str, Any], method: str, path: str, options: dict[str, Any]
) -> None:
    answer = client.request(method, path, **options)
    content = spec["paths"][path][method]["responses"]["200"]["content"]
    schema = content["application/json"]["schema"]
    found = answer.json()
    assert answer.status_code == 200 and problems(spec, schema, found) == []
    item, shown = schema.get("items", schema), found[0] if isinstance(found, list) else found
    known = spec["components"]["schemas"][item["$ref"].rpartition("/")[2]]["properties"]
    assert set(shown) <= set(known)


def test_every_code_of_an_error_is_named_with_its_status(spec: dict[str, Any]) -> None:
    raised = {(status, re.escape(code)) for code, status in STATUS.items()}
    for path in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "ApiError":
                raised |= _code(*node.args[:2])
    for status, pattern in raised:
        assert re.search(rf"(?<!\S){pattern}(?!\S)", CODES[status]), (status, pattern)
    answers = spec["components"]["responses"]
    assert "`unknown_model`" in answers["Error404"]["description"]
    schema = answers["Error404"]["content"]["application/json"]["schema"]
    assert problems(spec, schema, {"error": {"code": "a", "message": "b", "details": None}}) == []


def _code(status: ast.expr, code: ast.expr) -> set[tuple[int, str]]:
    """Status and code of an error as a pattern; nothing where a variable holds one."""
    number = getattr(status, "value", None)
    parts = code.values if isinstance(code, ast.JoinedStr) else [code]
    texts = [str(part.value) if isinstance(part, ast.Constant) else r"\w+" for part in parts]
    known = isinstance(number, int) and number not in NOBODY_HEARS and texts != [r"\w+"]
    return {(int(str(number)), "".join(texts))} if known else set()
