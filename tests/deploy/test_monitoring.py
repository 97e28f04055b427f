"""What Prometheus and Grafana are told: pods that exist, figures that the service has."""

import json
import re
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from service.http.keys import parse_keys
from service.metrics import Metrics, state_metrics
from tests.deploy.test_kubernetes import FOLDER, arrangement, documents, pods

# Beside those of the service: what Prometheus adds, and what belongs to a histogram.
GIVEN = {"le", "pod"}


def figures() -> dict[str, set[str]]:
    """The names of all series and their labels."""
    metrics = Metrics()
    metrics.began()
    metrics.answered(route="/classify", method="POST", status=200, seconds=0.1)
    metrics.batch("m", 1, 0.1, 0.1)
    metrics.queued("m", 1)
    state = state_metrics(
        evaluations={"queued": 0}, model_evaluations=0, evaluator_alive=True, memory={"server": 1}
    )
    families = text_string_to_metric_families(metrics.exposition(state).decode())
    return {sample.name: set(sample.labels) for family in families for sample in family.samples}


def expressions() -> list[str]:
    dashboard: dict[str, Any] = json.loads((FOLDER / "monitoring" / "dashboard.json").read_text())
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_shows_figures_that_the_service_has() -> None:
    known = figures()
    shown = set()
    for expression in expressions():
        names = set(re.findall(r"\bassay_\w+", expression))
        assert names and names <= set(known), expression
        labels = {
            label
            for group in re.findall(r"by \(([\w, ]+)\)", expression)
            for label in group.split(", ")
        } | set(re.findall(r"(\w+)=~", expression))
        assert all(labels <= known[name] | GIVEN for name in names), expression
        shown |= {re.sub("_(bucket|sum|count)$", "", name) for name in names}
    all_names = {re.sub("_(bucket|sum|count|created)$", "", name) for name in known}
    assert shown >= {name for name in all_names if not name.endswith(("_created", "_requests"))}


def test_every_pod_is_asked_with_the_key_of_an_admin() -> None:
    (monitor,) = documents(FOLDER / "monitoring" / "pod-monitor.yaml")
    assert (monitor["apiVersion"], monitor["kind"]) == ("monitoring.coreos.com/v1", "PodMonitor")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    labels = monitor["spec"]["selector"]["matchLabels"]
    for name in ("single", "scaled"):
        for pod in pods(arrangement(name)).values():
            assert labels.items() <= pod["metadata"]["labels"].items()
            ports = [port["name"] for port in pod["spec"]["containers"][0]["ports"]]
            assert ports == [endpoint["port"]]
    assert endpoint["path"] == "/metrics"
    (secret,) = documents(FOLDER / "metrics.example.yaml")
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == secret["metadata"]["name"]
    (keys,) = documents(FOLDER / "keys.example.yaml")
    caller = parse_keys(json.loads(keys["stringData"]["keys.json"])).find(
        secret["stringData"][credentials["key"]].encode()
    )
    assert caller is not None and "admin" in caller.scopes
