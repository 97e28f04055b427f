"""What the protocol V2 says of the server and its models, in this process."""

import httpx2
from starlette.testclient import TestClient

from runtimes.artifact import Artifact
from tests.service.front import check_error

PREFIX = "/v2/models/fashion-elliptical"


def test_a_model_describes_itself(client: TestClient, tiny_artifact: Artifact) -> None:
    outputs = {"datatype": "FP32", "shape": [-1, 3]}
    for prefix in (PREFIX, f"{PREFIX}/versions/1"):
        model = client.get(prefix).json()
        assert model["parameters"]["digest"] == tiny_artifact.digest
        assert {key: model[key] for key in ("name", "versions", "inputs", "outputs")} == {
            "name": "fashion-elliptical",
            "versions": ["1"],
            "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, 1, 8, 8]}],
            "outputs": [{"name": name, **outputs} for name in ("logits", "probabilities")],
        }
        assert client.get(f"{prefix}/ready").json()["ready"] is True
        config = client.get(f"{prefix}/config").json()
        own = {"name": "images", "data_type": "TYPE_FP32", "dims": [-1, 1, 8, 8]}
        assert (config["input"], config["max_batch_size"]) == ([own], 0)
    text = client.get("/v2/models/tiny-transject").json()
    assert text["inputs"] == [{"name": "texts", "datatype": "BYTES", "shape": [-1]}]


def test_statistics_count_what_was_done(client: TestClient) -> None:
    def count(stats: httpx2.Response) -> int:
        [found] = [s for s in stats.json()["model_stats"] if s["name"] == "fashion-dot"]
        return found["inference_count"]

    before = count(client.get("/v2/models/fashion-dot/stats"))
    tensor = {"name": "images", "datatype": "FP32", "shape": [3, 1, 8, 8], "data": [0.5] * 192}
    client.post("/v2/models/fashion-dot/infer", json={"inputs": [tensor]})
    assert count(client.get("/v2/models/fashion-dot/versions/1/stats")) == before + 3
    every = client.get("/v2/models/stats")
    assert count(every) == before + 3 and len(every.json()["model_stats"]) == 3


def test_models_are_unloaded_and_loaded(client: TestClient) -> None:
    def states() -> dict[str, str]:
        rows = client.post("/v2/repository/index").json()
        return {row["name"]: row["state"] for row in rows}

    url = "/v2/repository/models/fashion-dot"
    assert set(states().values()) == {"READY"}
    assert client.post(f"{url}/unload").status_code == 200
    try:
        assert states()["fashion-dot"] == "UNAVAILABLE"
        ready = client.post("/v2/repository/index", json={"ready": True}).json()
        assert "fashion-dot" not in {row["name"] for row in ready}
        assert client.get("/v2/models/fashion-dot/ready").status_code == 404
        assert client.get("/v1/models/fashion-dot").status_code == 404
        assert client.post(f"{url}/unload").status_code == 404
    finally:
        assert client.post(f"{url}/load", json={}).status_code == 200
    assert set(states().values()) == {"READY"}


def test_models_come_from_folders_alone(client: TestClient) -> None:
    url = "/v2/repository/models/fashion-dot/load"
    for body in ({"parameters": {"config": "{}"}}, {"parameters": {"file:1/m.onnx": "eA=="}}, []):
        check_error(client.post(url, json=body), 422, "invalid_body", "folders alone")
    unknown = client.post(url, json={"parameters": {"unload_dependents": True}})
    check_error(unknown, 422, "unknown_parameter")
    for name in ("nope", "..", "%2E%2E", "a%2F..%2Fb", "a%00b", 300 * "a"):
        assert client.post(f"/v2/repository/models/{name}/load").status_code == 404, name
