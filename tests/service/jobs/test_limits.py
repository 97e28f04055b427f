"""What one evaluation may ask for, through the route."""

import json
from pathlib import Path
from typing import Any

import pytest

from robustness import EvaluationSpec, cost
from runtimes.artifact import Artifact
from tests.service.front import Front, check_error, pictures

# (attack, field, part of the message)
TOO_MUCH: list[tuple[dict[str, Any], str, str]] = [
    ({"name": "pgd", "eps": ["0.1"], "steps": 1001}, "steps", "1001 steps .* 1000 allowed"),
    ({"name": "spsa", "eps": ["0.1"], "samples": 2049}, "samples", "2049 directions .* 2048"),
    ({"name": "square", "eps": ["0.1"], "queries": 20_001}, "queries", "20001 queries .* 20000"),
    ({"name": "typos", "queries": 20_001}, "queries", "20001 queries .* 20000"),
    ({"name": "autoattack", "eps": [f"{i}/255" for i in range(1, 18)]}, "eps", "17 radii .* 16"),
    ({"name": "smoothing", "sigma": [i / 20 for i in range(1, 18)]}, "sigma", "17 values .* 16"),
    ({"name": "word-swap", "rate": [i / 20 for i in range(1, 18)]}, "rate", "17 values .* 16"),
    ({"name": "hotflip", "edits": list(range(1, 18))}, "edits", "17 values .* 16"),
]


def spec(*attacks: dict[str, Any]) -> str:
    return json.dumps({"attacks": attacks})


def sent(attack: dict[str, Any]) -> dict[str, Any]:
    """A form with the kind of input that an attack works on."""
    on_texts = attack["name"] in ("word-swap", "hotflip", "typos")
    inputs = {"files": [], "texts": '["a good film"]'} if on_texts else {}
    return {"spec": spec(attack), **inputs}


@pytest.mark.parametrize(("attack", "field", "message"), TOO_MUCH)
def test_too_much_of_one_thing_is_refused_with_the_limit(
    front: Front, attack: dict[str, Any], field: str, message: str
) -> None:
    details = check_error(front.post(**sent(attack)), 422, "invalid_spec", message)
    assert [problem["field"] for problem in details] == [f"attacks.0.{field}"]
    assert front.folders() == []


def test_every_broken_limit_is_listed(front: Front) -> None:
    attacks = [{"name": "fgsm", "eps": [f"{i}/255"]} for i in range(1, 16)]
    attacks += [{"name": "pgd", "eps": ["0.1"], "steps": 1001}, TOO_MUCH[2][0]]
    refused = front.post(spec=spec(*attacks))
    details = check_error(refused, 422, "invalid_spec", "17 attacks .* 16 allowed")
    fields = ["attacks", "attacks.15.steps", "attacks.16.queries"]
    assert [problem["field"] for problem in details] == fields


@pytest.mark.parametrize(
    "attack", [{"name": "autoattack", "eps": ["8/255"]}, {"name": "smoothing", "samples": 100_000}]
)
def test_cost_is_that_of_the_models_classes_and_has_a_limit(
    tmp_path: Path, artifacts: dict[str, Artifact], attack: dict[str, Any]
) -> None:
    expected = cost(EvaluationSpec.model_validate_json(spec(attack)), 2, [True], num_classes=3)
    front = Front(tmp_path, artifacts, evaluation_max_cost=expected)
    accepted = front.post(pictures(2), spec=spec(attack))
    assert accepted.json()["cost"]["model_evaluations"] == expected
    refused = front.post(pictures(3), spec=spec(attack))
    details = check_error(refused, 422, "too_expensive", f"more than the {expected:,} allowed")
    assert details["limit"] == expected < details["model_evaluations"]
    assert front.folders() == [accepted.json()["id"]]
    front.store.close()


def test_targeted_attack_on_three_classes_is_refused(front: Front) -> None:
    refused = front.post(spec=spec({"name": "apgd-t", "eps": ["8/255"]}))
    details = check_error(refused, 422, "invalid_spec", "at least 4 classes.* has 3")
    assert details[0]["field"] == "attacks.0.name"
