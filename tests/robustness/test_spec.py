import math
import subprocess
import sys

import pytest
from pydantic import ValidationError

from robustness import EvaluationSpec, cost, parse_eps, parse_gate
from robustness.attacks.pgd import PGD as PGDAttack

PGD = {"name": "pgd", "eps": ["4/255"]}
MIFGSM = {"name": "torchattacks", "attack": "MIFGSM", "eps": ["8/255"]}


@pytest.mark.parametrize(
    ("text", "value"), [("8/255", 8 / 255), ("0.03", 0.03), ("1e-3", 1e-3), ("1", 1.0)]
)
def test_eps_is_read_as_fraction_or_decimal(text: str, value: float) -> None:
    assert parse_eps(text) == value


@pytest.mark.parametrize(
    "text",
    ["0", "-1/255", "256/255", "nan", "inf", "1/0", "8/", "", "٣", "1_0", "1e-400", "8/-255"],
)
def test_eps_outside_zero_to_one_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="eps must"):
        parse_eps(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attacks": []}, "at least 1"),
        ({"attacks": [{"name": "x"}] * 1001}, "at most 1000"),
        ({"attacks": [{"name": "fgsm", "eps": [{}] * 1001}]}, "at most 1000"),
        ({"attacks": [{"name": "corruptions", "names": [{}] * 1001}]}, "at most 1000"),
        ({"attacks": [{"name": "typos", "edits": 10**300}]}, "less than or equal"),
        ({"attacks": [{"name": "pgd", "eps": []}]}, "at least 1"),
        ({"attacks": [{"name": "pgd", "eps": [-0.1]}]}, "eps must"),
        ({"attacks": [{"name": "pgd", "eps": [math.nan]}]}, "eps must"),
        ({"attacks": [{"name": "pgd", "eps": [True]}]}, "valid string"),
        ({"attacks": [{"name": "pgd", "eps": ["8/255", 8 / 255]}]}, "a radius twice"),
        ({"attacks": [PGD, PGD]}, "'pgd' twice"),
        ({"attacks": [MIFGSM, MIFGSM | {"params": {"steps": 20}}]}, ":MIFGSM' twice at eps 8/255"),
        ({"attacks": [{"name": "fab-t", "eps": [e]} for e in ("8/255", "2/255")]}, "once for each"),
        ({"attacks": [{**PGD, "steps": 0}]}, "greater than or equal to 1"),
        ({"attacks": [{**PGD, "steps": 2.5}]}, "valid integer"),
        ({"attacks": [{**PGD, "alpha": "nan"}]}, "alpha must"),
        ({"attacks": [{**PGD, "norm": "L2"}]}, "'Linf'"),
        ({"attacks": [{"name": "fgsm", "eps": ["0.1"], "steps": 3}]}, "FGSM takes no 'steps'"),
        ({"attacks": [{"name": "apgd", "eps": ["0.1"]}]}, "'apgd'; did you mean 'apgd-ce' or"),
        (
            {"attacks": [{"name": "magic", "eps": ["0.1"]}]},
            "'magic'; known: fgsm, pgd, segpgd, apgd-ce",
        ),
        ({"attacks": [{"eps": ["0.1"]}]}, "an attack needs a name; known: fgsm"),
        ({"attacks": [{**PGD, "eps": [8]}]}, "got '8'; did you mean '8/255'"),
        ({"attacks": [{**PGD, "alpha": "2"}]}, "got '2'; did you mean '2/255'"),
        ({"attacks": [{**PGD, "eps": [300]}]}, r"got '300' \["),
        ({"attacks": [{**PGD, "step": 3}]}, "PGD takes no 'step'; did you mean 'steps'"),
        ({"name": "two\nlines"}, "name must hold printable"),
        ({"name": "x" * 101}, "at most 100"),
        ({"note": "a\u202eb"}, "note must hold printable"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"seed": math.nan}, "valid integer"),
        ({"top_k": [0]}, "greater than or equal to 1"),
        ({"top_k": [1, 1]}, "a rank twice"),
        ({"gate": "robust_accuracy >= 1.5"}, "gate must"),
        ({"gate": "robust_accuracy >= nan"}, "gate must"),
        ({"gate": "speed >= 0.5"}, "gate must"),
        ({"model": "a", "compare_with": "a"}, "another model"),
    ],
)
def test_bad_spec_is_refused_with_its_rule(change: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EvaluationSpec.model_validate({"attacks": [PGD], **change})


def test_default_step_size_is_a_share_of_eps() -> None:
    attack = PGDAttack(eps=["8/255"])
    assert attack.steps == 20
    assert attack.step_size(8 / 255) == 0.15 * 8 / 255
    assert PGDAttack(eps=["8/255"], alpha="2/255").step_size(8 / 255) == 2 / 255


def test_gate_is_read() -> None:
    gate = parse_gate("robust_accuracy>=0.40")
    assert (gate.metric, gate.op, gate.threshold) == ("robust_accuracy", ">=", 0.4)
    assert gate.holds(0.4)
    assert not parse_gate("clean_accuracy > 0.4").holds(0.4)


def test_elliptical_models_cost_twice_the_attacks() -> None:
    spec = EvaluationSpec.model_validate(
        {"attacks": [{**PGD, "eps": ["1/255", "2/255"]}, {"name": "fgsm", "eps": ["1/255"]}]}
    )
    probes, attacked = spec.diagnostics_cost(10), 2 * (20 + 3) + 1 + 3
    assert cost(spec, 10, [False]) == probes + 10 * (2 + attacked)
    assert cost(spec, 10, [False, True]) == 2 * probes + 10 * (2 * 2 + 3 * attacked)


def test_importing_the_spec_and_the_pictures_does_not_import_torch() -> None:
    code = (
        "import sys, robustness, robustness.spec, robustness.report.schema; "
        "import robustness.report.lookup; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
