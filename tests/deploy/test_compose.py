"""compose.yaml: what it starts, how it is hardened, and that its settings exist."""

import re
from typing import Any

import pytest
import yaml

from deploy.image.__main__ import project_version
from service.settings import ROOT, Settings

TEXT = (ROOT / "deploy" / "compose.yaml").read_text()
# The keys of Compose's specification that this file may use; any other is a slip of the pen.
SERVICE_KEYS = {
    "cap_drop", "depends_on", "environment", "healthcheck", "image", "mem_limit", "ports",
    "profiles", "read_only", "restart", "security_opt", "stop_grace_period", "tmpfs", "volumes",
}  # fmt: skip
OURS = ("assay", "evaluator")


def composed(**environment: str) -> dict[str, Any]:
    """The file as Compose reads it with an environment: `${NAME:-default}` replaced."""

    def value(found: re.Match[str]) -> str:
        return environment.get(found[1]) or found[2]

    return yaml.safe_load(re.sub(r"\$\{(\w+):-([^}]*)\}", value, TEXT))


def test_file_is_complete_and_only_one_service_starts_unless_profiles_add_others() -> None:
    file = composed()
    assert {key for key in file if not key.startswith("x-")} == {"name", "services", "volumes"}
    assert "$" not in re.sub(r"\$\{\w+:-[^}]*\}", "", TEXT)
    services = file["services"]
    assert {name: service.get("profiles") for name, service in services.items()} == {
        "assay": None,
        "evaluator": ["postgres"],
        "database": ["postgres"],
        "prometheus": ["metrics"],
    }
    for service in services.values():
        assert set(service) <= SERVICE_KEYS
        for name, condition in service.get("depends_on", {}).items():
            assert name in services and condition["required"] is False
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in file["volumes"] or (ROOT / "deploy" / source).is_file(), volume


@pytest.mark.parametrize("name", OURS)
def test_containers_are_hardened_and_have_valid_settings(name: str) -> None:
    service = composed()["services"][name]
    assert service["read_only"] is True and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert [volume.partition(":")[2] for volume in service["volumes"]] == ["/state"]
    assert service["image"] == f"assay:{project_version()}-cpu"
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    grace = int(service["stop_grace_period"].removesuffix("s"))
    assert grace > Settings().drain_s + Settings().predict_timeout_s
    environment = service["environment"]
    given = {key.removeprefix("ASSAY_").lower(): value for key, value in environment.items()}
    assert all(key.startswith("ASSAY_") for key in environment)
    assert set(given) <= set(Settings.model_fields)
    Settings.model_validate({key: value for key, value in given.items() if value})
    roles = composed(ASSAY_ROLE="predict")["services"]
    assert [roles[each]["environment"]["ASSAY_ROLE"] for each in OURS] == ["predict", "evaluate"]


def test_prometheus_asks_the_service() -> None:
    asked = yaml.safe_load((ROOT / "deploy" / "prometheus.yaml").read_text())
    (job,) = asked["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["assay:3000"]}]
    metrics = composed()["services"]["assay"]["environment"]["ASSAY_OPEN_METRICS"]
    assert Settings.model_validate({"open_metrics": metrics}).open_metrics
