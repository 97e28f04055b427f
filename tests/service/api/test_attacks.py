"""`GET /v1/attacks`: what forms and clients are made from."""

from starlette.testclient import TestClient

from robustness import ATTACKS, EvaluationSpec


def test_every_attack_is_described_with_its_options(client: TestClient) -> None:
    answer = client.get("/v1/attacks")
    assert answer.status_code == 200
    found = {attack["name"]: attack for attack in answer.json()}
    assert list(found) == list(ATTACKS)
    pgd = found["pgd"]
    assert (pgd["title"], pgd["input"], pgd["access"]) == ("PGD", "image", "gradient")
    assert (pgd["paper"], pgd["references"]) == ("Madry et al. 2018", ["arXiv:1706.06083"])
    assert all(one["title"] and one["paper"] and one["references"] for one in found.values())
    steps = next(option for option in pgd["options"] if option["name"] == "steps")
    assert (steps["type"], steps["default"], steps["minimum"]) == ("integer", 20, 1)
    assert found["square"]["norms"] == ["Linf", "L2"]


def test_described_defaults_make_a_spec(client: TestClient) -> None:
    for attack in client.get("/v1/attacks").json():
        values = {"eps": ["1/255"]} | {
            option["name"]: option["default"]
            for option in attack["options"]
            if option["default"] is not None
        }
        values |= {
            option["name"]: option["choices"][0]
            for option in attack["options"]
            if option["required"] and option["choices"]
        }
        known = {option["name"] for option in attack["options"]}
        asked = {"name": attack["name"]} | {k: v for k, v in values.items() if k in known}
        EvaluationSpec.model_validate({"attacks": [asked]})
