"""An evaluation as clients see it."""

from datetime import UTC, datetime
from typing import Any

from service.api import evidence
from service.jobs.job import Job

PREFIX = "/v1/evaluations"


def overview(job: Job) -> dict[str, Any]:
    """What the list shows of an evaluation."""
    models = [model["name"] for model in job.models]
    own = f"{PREFIX}/{job.id}"
    return {
        "id": job.id,
        "status": job.status,
        "owner": job.owner,
        "priority": job.priority_name,
        "queue_position": job.position,
        "model": models[0],
        "compare_with": models[1] if len(models) > 1 else None,
        "models": job.models,
        "spec": job.spec,
        "samples": job.samples,
        "created": _moment(job.created),
        "started": _moment(job.started),
        "finished": _moment(job.finished),
        "cancel_requested": job.cancel_requested,
        "progress": {
            "done": job.done,
            "total": job.total or job.cost,
            "stage": job.stage,
            "eta_s": None if job.eta is None else round(job.eta, 1),
        },
        "error": job.error,
        "links": {"self": own, "events": f"{own}/events", **evidence.links(job, own)},
    }


def whole(job: Job) -> dict[str, Any]:
    """What an evaluation shows of itself."""
    return overview(job) | {"result": job.result}


def price(cost: int, seconds: float | None) -> dict[str, Any]:
    """What an evaluation costs: model evaluations, and seconds where they can be told."""
    return {"model_evaluations": cost, "seconds": None if seconds is None else round(seconds, 1)}


def _moment(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
