"""What the protocol says of the server and of each model."""

from typing import Any

from runtimes.artifact import Artifact
from service.api.v2.inputs import input_of
from service.api.v2.outputs import OUTPUTS
from service.http.openapi import API_VERSION
from service.predictions.registry import Registry
from service.predictions.reload import Reloader
from service.predictions.served import Served

_EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "statistics",
)


def server() -> dict[str, Any]:
    """The server's name, version and extensions."""
    return {"name": "assay", "version": API_VERSION, "extensions": list(_EXTENSIONS)}


def model(served: Served, registry: Registry) -> dict[str, Any]:
    """A model's versions, inputs and outputs."""
    artifact = served.artifact
    name, datatype, shape = input_of(artifact)
    return {
        "name": artifact.name,
        "versions": registry.versions(artifact.name),
        "platform": served.runtime.name,
        "inputs": [{"name": name, "datatype": datatype, "shape": shape}],
        "outputs": [
            {"name": output, "datatype": "FP32", "shape": [-1, len(artifact.labels)]}
            for output in OUTPUTS
        ],
        "parameters": _about(served),
    }


def config(served: Served) -> dict[str, Any]:
    """A model in the words of a Triton configuration; the batch is part of its shapes."""
    artifact = served.artifact
    name, datatype, shape = input_of(artifact)
    kind = {"FP32": "TYPE_FP32", "BYTES": "TYPE_STRING"}[datatype]
    outputs = [
        {"name": output, "data_type": "TYPE_FP32", "dims": [-1, len(artifact.labels)]}
        for output in OUTPUTS
    ]
    return {
        "name": artifact.name,
        "platform": served.runtime.name,
        "backend": served.runtime.name,
        "version_policy": {"all": {}},
        "max_batch_size": 0,
        "input": [{"name": name, "data_type": kind, "dims": shape}],
        "output": outputs,
        "parameters": {key: {"string_value": value} for key, value in _about(served).items()},
    }


def statistics(served: Served) -> dict[str, Any]:
    """What a model has done since it was opened; queue and computation are counted by batch."""
    totals = served.batcher.totals
    done = {"count": totals.batches, "ns": _ns(totals.queue_s + totals.compute_s)}
    return {
        "name": served.artifact.name,
        "version": served.artifact.version,
        "inference_count": totals.inputs,
        "execution_count": totals.batches,
        "inference_stats": {
            "success": done,
            "fail": {"count": totals.failures, "ns": 0},
            "queue": {"count": totals.batches, "ns": _ns(totals.queue_s)},
            "compute_infer": {"count": totals.batches, "ns": _ns(totals.compute_s)},
        },
    }


def index(registry: Registry, reloader: Reloader, *, only_ready: bool) -> list[dict[str, str]]:
    """Every version of every model in the folders, served or not, and why not."""
    rows = [_row(served.artifact, "READY") for served in registry.all()]
    if only_ready:
        return rows
    rows += [_row(artifact, "UNAVAILABLE", "unloaded") for artifact in reloader.unloaded()]
    for name, problem in reloader.problems():
        rows.append({"name": name, "version": "", "state": "UNAVAILABLE", "reason": problem})
    return rows


def _row(artifact: Artifact, state: str, reason: str = "") -> dict[str, str]:
    names = {"name": artifact.name, "version": artifact.version}
    return names | {"state": state, "reason": reason}


def _about(served: Served) -> dict[str, str]:
    return {
        "digest": served.artifact.digest,
        "task": served.artifact.manifest.task,
        "precision": served.runtime.precision,
    }


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
