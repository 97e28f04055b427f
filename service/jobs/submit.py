"""From a request to an accepted evaluation: everything is checked before it is promised."""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustness.spec import EvaluationSpec, cost
from runtimes.artifact import Artifact
from runtimes.manifest import IMAGES, TEXTS, Task
from service.http.body import Upload
from service.http.errors import ApiError
from service.http.keys import Caller
from service.jobs.limits import (
    check_classes,
    check_cost,
    check_samples,
    check_sizes,
    spec_error,
)
from service.jobs.queue import DAY_S, BudgetSpent, JobStore, KeyConflict, QueueFull
from service.jobs.table import PRIORITIES, Job, NewJob, Priority, new_job_id
from service.jobs.uploads import Uploads, evaluations_folder, save_inputs
from service.settings import Settings
from service.tracing import traceparent

# For a full queue, where no running evaluation tells how long it takes, and at most.
_RETRY_AFTER_S, _MAX_RETRY_AFTER_S = 10, 3600

FindModel = Callable[[str | None, Task], Artifact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The request for an evaluation, and who sent it."""

    spec: EvaluationSpec
    uploads: Uploads
    idempotency_key: str | None
    caller: Caller
    priority: Priority = "normal"

    @property
    def fingerprint(self) -> str:
        """A digest that tells a repeated request from another one."""
        uploads = self.uploads
        content: dict[str, Any] = {
            "spec": self.spec.model_dump(mode="json"),
            "labels": uploads.labels,
            "images": [_digest(image) for image in uploads.images],
            "texts": list(uploads.texts),
            "archive": uploads.archive and _digest(uploads.archive),
            "priority": self.priority,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Accepts evaluations.

    Attributes:
        store: the table of evaluations.
        settings: limits and the state folder.
        find_model: the artifact for `name`, `name:version` or None (the default model) that does
            a task; raises ApiError 404 for an unknown one and 422 for one of another task.
    """

    store: JobStore
    settings: Settings
    find_model: FindModel

    def accept(self, submission: Submission) -> tuple[Job, bool]:
        """Store the files, then the row; reads and writes files, so call it in a thread.

        Returns:
            The job, and whether it is new (not the answer to a repeated request).

        Raises:
            ApiError: something is not acceptable; nothing is left behind.
            OSError: the disk is full.
        """
        fingerprint, caller = submission.fingerprint, submission.caller
        known = self._known(caller.name, submission.idempotency_key, fingerprint)
        if known is not None:
            return known, False
        artifacts = self._check(submission.spec)
        if self.store.waiting() >= self.settings.queue_length:
            raise self._queue_full()
        self._check_budget(caller)
        job_id = new_job_id()
        folder = evaluations_folder(self.settings.state) / job_id
        samples = save_inputs(
            folder, submission.uploads, artifacts=artifacts, settings=self.settings
        )
        new = _new_job(job_id, submission, artifacts, samples, fingerprint)
        return self._submit(new, caller, folder)

    def estimate(self, spec: EvaluationSpec, samples: int) -> tuple[int, list[dict[str, str]]]:
        """What an evaluation of so many inputs would cost, and the models in it.

        Raises:
            ApiError: it would not be accepted.
        """
        artifacts = self._check(spec)
        check_samples(samples, self.settings, on_texts=spec.on_texts)
        evaluations = _cost(spec, samples, artifacts)
        check_cost(evaluations, self.settings)
        return evaluations, _names(artifacts)

    def _check(self, spec: EvaluationSpec) -> list[Artifact]:
        check_sizes(spec, self.settings)
        artifacts = self._artifacts(spec)
        check_classes(spec, len(artifacts[0].labels))
        return artifacts

    def _check_budget(self, caller: Caller, cost: int = 1) -> None:
        """Refuse early, before files are decoded, what `JobStore.submit` would refuse as well.

        Raises:
            ApiError: 422 too_expensive for ever, or 429 budget_spent for now.
        """
        budget = caller.evaluations_budget
        if budget is None:
            return
        if cost > budget:
            message = f"The evaluation takes more than this key's {budget:,} model evaluations."
            details = {"model_evaluations": cost, "limit": budget}
            raise ApiError(422, "too_expensive", message, details)
        if self.store.spent(caller.name, time.time() - DAY_S) + cost > budget:
            raise self._budget_spent(caller.name, cost, budget)

    def _submit(self, new: NewJob, caller: Caller, folder: Path) -> tuple[Job, bool]:
        created = False
        budget = caller.evaluations_budget
        try:
            check_cost(new.cost, self.settings)
            self._check_budget(caller, new.cost)
            job, created = self.store.submit(
                new, queue_length=self.settings.queue_length, budget=budget
            )
        except QueueFull:
            raise self._queue_full() from None
        except KeyConflict:
            raise _key_conflict() from None
        except BudgetSpent:
            raise self._budget_spent(new.owner, new.cost, budget or 0) from None
        finally:
            if not created:
                shutil.rmtree(folder, ignore_errors=True)
        return job, created

    def _known(self, owner: str, key: str | None, fingerprint: str) -> Job | None:
        try:
            return self.store.find_key(owner, key, fingerprint)
        except KeyConflict:
            raise _key_conflict() from None

    def _artifacts(self, spec: EvaluationSpec) -> list[Artifact]:
        task = TEXTS if spec.on_texts else IMAGES
        artifacts = [self.find_model(spec.model, task)]
        if spec.compare_with is not None:
            artifacts.append(self.find_model(spec.compare_with, task))
            if artifacts[0].digest == artifacts[1].digest:
                raise _incomparable("must name another model than model")
            if artifacts[0].labels != artifacts[1].labels:
                raise _incomparable("must have the same labels as model")
        return artifacts

    def _queue_full(self) -> ApiError:
        message = f"{self.settings.queue_length} evaluations are waiting; try again later."
        wait = self.store.next_place_in() or _RETRY_AFTER_S
        headers = {"Retry-After": str(min(_MAX_RETRY_AFTER_S, max(1, math.ceil(wait))))}
        return ApiError(429, "queue_full", message, headers=headers)

    def _budget_spent(self, owner: str, cost: int, budget: int) -> ApiError:
        wait = max(1, math.ceil(self.store.affordable_in(owner, cost, budget)))
        message = f"This key's {budget:,} model evaluations in 24 hours are spent; try again later."
        details = {"limit": budget}
        return ApiError(429, "budget_spent", message, details, {"Retry-After": str(wait)})


def _new_job(
    job_id: str,
    submission: Submission,
    artifacts: Sequence[Artifact],
    samples: int,
    fingerprint: str,
) -> NewJob:
    spec = submission.spec.model_dump(mode="json", exclude_none=True)
    return NewJob(
        id=job_id,
        spec=spec | {"model": submission.spec.model or artifacts[0].name},
        models=_names(artifacts),
        samples=samples,
        cost=_cost(submission.spec, samples, artifacts),
        fingerprint=fingerprint,
        owner=submission.caller.name,
        priority=PRIORITIES[submission.priority],
        idempotency_key=submission.idempotency_key,
        traceparent=traceparent(),
    )


def _names(artifacts: Sequence[Artifact]) -> list[dict[str, str]]:
    return [{"name": a.name, "version": a.version, "digest": a.digest} for a in artifacts]


def _cost(spec: EvaluationSpec, samples: int, artifacts: Sequence[Artifact]) -> int:
    elliptical = [bool(artifact.manifest.config.get("elliptical")) for artifact in artifacts]
    return cost(spec, samples, elliptical, num_classes=len(artifacts[0].labels))


def _incomparable(rule: str) -> ApiError:
    return spec_error([{"field": "compare_with", "message": rule}])


def _key_conflict() -> ApiError:
    message = "This Idempotency-Key was used for another request."
    return ApiError(409, "idempotency_conflict", message)


def _digest(upload: Upload) -> list[str]:
    return [upload.name, hashlib.sha256(upload.content).hexdigest()]
