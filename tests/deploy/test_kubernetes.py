"""The manifests: valid for Kubernetes, complete, hardened, and about settings that exist."""

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubernetes_validate.utils import all_versions

from service.http.keys import parse_keys
from service.jobs.database import read_url
from service.settings import ROOT, Settings

FOLDER = ROOT / "deploy" / "kubernetes"
FILES = sorted(FOLDER.glob("**/*.yaml"))
ARRANGEMENTS = ("single", "scaled", "openshift")
Resource = dict[str, Any]


def documents(path: Path) -> list[Resource]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each is not None]


def arrangement(name: str) -> list[Resource]:
    """Everything that `kubectl apply -k` would send."""
    (kustomization,) = documents(FOLDER / name / "kustomization.yaml")
    found: list[Resource] = []
    for entry in kustomization["resources"]:
        path = (FOLDER / name / entry).resolve()
        nested = path.is_dir()
        found += arrangement(path.relative_to(FOLDER).as_posix()) if nested else documents(path)
    if "components" in kustomization:
        assert kustomization["components"] == ["../pod"]
        (pod,) = documents(FOLDER / "pod" / "pod.yaml")
        for deployment in of_kind(found, "Deployment"):
            deployment["spec"] = merged(deployment["spec"], pod["spec"])
    for entry in kustomization.get("patches", []):
        assert entry["target"] == {"kind": "Deployment"}
        (patch,) = documents(FOLDER / name / entry["path"])
        for deployment in of_kind(found, "Deployment"):
            deployment["spec"] = merged(deployment["spec"], patch["spec"])
    return found


def merged(own: Any, patch: Any) -> Any:
    """A strategic merge: mappings field by field, lists (of containers, of variables) by name.

    What a patch sets to null is taken out.
    """
    if isinstance(own, dict):
        both = own | {key: merged(own.get(key), value) for key, value in patch.items()}
        return {key: value for key, value in both.items() if value is not None}
    if isinstance(own, list):
        both = ({each["name"]: each for each in part} for part in (own, patch))
        return [*merged(*both).values()]
    return patch


def of_kind(resources: list[Resource], kind: str) -> list[Resource]:
    return [resource for resource in resources if resource["kind"] == kind]


def pods(resources: list[Resource]) -> dict[str, Resource]:
    found = of_kind(resources, "Deployment")
    return {each["metadata"]["name"]: each["spec"]["template"] for each in found}


def variables(pod: Resource) -> dict[str, Resource]:
    return {each["name"]: each for each in pod["spec"]["containers"][0]["env"]}


VERSIONS = sorted(set(all_versions()), key=lambda version: [*map(int, version.split("."))])


def test_manifests_are_valid_in_the_oldest_and_newest_version_and_all_in_use() -> None:
    examples = [path for path in FILES if path.name.endswith(".example.yaml")]
    checked = [each for path in examples for each in documents(path)]
    checked += [each for name in ARRANGEMENTS for each in arrangement(name)]
    assert len(checked) >= 20
    for version in (VERSIONS[0], VERSIONS[-1]):
        for resource in checked:
            kubernetes_validate.validate(resource, version, strict=True)
    listed = {FOLDER / "pod" / "pod.yaml", FOLDER / "openshift" / "user.yaml"} | {
        (FOLDER / name / entry).resolve()
        for name in ("base", "monitoring", *ARRANGEMENTS)
        for entry in documents(FOLDER / name / "kustomization.yaml")[0]["resources"]
    }
    rest = {path for path in FILES if path not in listed and path.name != "kustomization.yaml"}
    assert rest == set(examples)
    assert all(path.exists() for path in listed)


EVERY_POD = [
    pytest.param(name, template, id=f"{name} {pod}")
    for name in ARRANGEMENTS
    for pod, template in pods(arrangement(name)).items()
]


@pytest.mark.parametrize(("name", "template"), EVERY_POD)
def test_pods_are_hardened_asked_and_stopped_as_the_service_expects(
    name: str, template: Resource
) -> None:
    spec = template["spec"]
    assert spec["automountServiceAccountToken"] is False
    context = spec["securityContext"]
    own = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 10001)  # OpenShift chooses others
    assert context == {
        "runAsNonRoot": True,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    } | ({} if name == "openshift" else own)
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert writable == {"/state", "/tmp"}
    assert {"memory", "ephemeral-storage"} <= set(container["resources"]["limits"])
    assert set(container["resources"]["requests"]) == {"cpu", "memory", "ephemeral-storage"}
    sizes = {
        each["name"]: each["emptyDir"]["sizeLimit"]
        for each in spec["volumes"]
        if "emptyDir" in each
    }
    assert sizes == {"tmp": "2Gi"}  # less than the limit, which counts the log as well
    assert container["resources"]["limits"]["ephemeral-storage"] == "3Gi"
    probes = [f"{kind}Probe" for kind in ("readiness", "liveness", "startup")]
    asked = [container[probe]["httpGet"]["path"] for probe in probes]
    assert asked == ["/readyz", "/livez", "/livez"]
    (_, pause) = container["lifecycle"]["preStop"]["exec"]["command"]
    longest = Settings().drain_s + Settings().predict_timeout_s
    assert spec["terminationGracePeriodSeconds"] > int(pause) + longest
    given = {name.removeprefix("ASSAY_").lower(): v for name, v in variables(template).items()}
    assert all(name.startswith("ASSAY_") for name in variables(template))
    assert set(given) <= set(Settings.model_fields)
    Settings.model_validate({name: v["value"] for name, v in given.items() if "value" in v})


def test_many_pods_share_a_database_and_only_predictors_are_scaled_and_found() -> None:
    resources = arrangement("scaled")
    templates = pods(resources)
    roles = {name: variables(pod)["ASSAY_ROLE"]["value"] for name, pod in templates.items()}
    assert roles == {"assay-predictors": "predict", "assay-evaluators": "evaluate"}
    for pod in templates.values():
        assert "secretKeyRef" in variables(pod)["ASSAY_DATABASE"]["valueFrom"]
    (claim,) = of_kind(resources, "PersistentVolumeClaim")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    (scaler,) = of_kind(resources, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "assay-predictors"
    deployments = {each["metadata"]["name"]: each for each in of_kind(resources, "Deployment")}
    assert "replicas" not in deployments["assay-predictors"]["spec"]  # it is the autoscaler's
    (service,) = of_kind(resources, "Service")
    found = [name for name, pod in templates.items() if _labeled(pod, service["spec"]["selector"])]
    assert found == ["assay-predictors"]
    (alone,) = pods(arrangement("single")).values()
    assert _labeled(alone, service["spec"]["selector"])
    # One pod with SQLite is never two.
    (deployment,) = of_kind(arrangement("single"), "Deployment")
    assert deployment["spec"]["replicas"] == 1
    assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    assert variables(deployment["spec"]["template"])["ASSAY_ROLE"]["value"] == "all"
    assert of_kind(arrangement("single"), "HorizontalPodAutoscaler") == []


def _labeled(pod: Resource, labels: dict[str, str]) -> bool:
    return labels.items() <= pod["metadata"]["labels"].items()


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_references_have_what_they_name_and_the_network_is_closed(name: str) -> None:
    resources = arrangement(name)
    named = {(each["kind"], each["metadata"]["name"]) for each in resources}
    examples = [each for path in FOLDER.glob("*.example.yaml") for each in documents(path)]
    secrets = {each["metadata"]["name"]: set(each["stringData"]) for each in examples}
    for pod in pods(resources).values():
        spec = pod["spec"]
        assert ("ServiceAccount", spec["serviceAccountName"]) in named
        for volume in spec["volumes"]:
            if "persistentVolumeClaim" in volume:
                claim = volume["persistentVolumeClaim"]["claimName"]
                assert ("PersistentVolumeClaim", claim) in named
            if "secret" in volume:
                assert volume["secret"]["secretName"] in secrets
        for variable in variables(pod).values():
            if "valueFrom" in variable:
                reference = variable["valueFrom"]["secretKeyRef"]
                assert reference["key"] in secrets[reference["name"]]
    for budget in of_kind(resources, "PodDisruptionBudget"):
        labels = budget["spec"]["selector"]["matchLabels"]
        assert any(_labeled(pod, labels) for pod in pods(resources).values())
    policies = of_kind(resources, "NetworkPolicy")
    base = next(each for each in policies if each["metadata"]["name"] == "assay")
    assert base["spec"]["policyTypes"] == ["Ingress", "Egress"] and base["spec"]["egress"] == []
    labels = base["spec"]["podSelector"]["matchLabels"]
    assert all(_labeled(pod, labels) for pod in pods(resources).values())
    rules = [rule for policy in policies for rule in policy["spec"].get("egress", [])]
    ports = [port["port"] for rule in rules for port in rule["ports"]]
    assert sorted(ports) == ([53, 53, 5432] if name == "scaled" else [])


def test_examples_are_what_the_service_reads() -> None:
    (keys,) = documents(FOLDER / "keys.example.yaml")
    callers = parse_keys(json.loads(keys["stringData"]["keys.json"])).callers
    scopes = {scope for caller in callers for scope in caller.scopes}
    assert scopes == {"predict", "evaluate", "admin"}
    (database,) = documents(FOLDER / "database.example.yaml")
    assert read_url(database["stringData"]["url"]).get_backend_name() == "postgresql"
