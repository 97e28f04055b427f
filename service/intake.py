"""From a request to an accepted evaluation: everything is checked before it is promised."""

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from export.artifact import Artifact
from robustness.spec import EvaluationSpec, cost
from service.errors import ApiError
from service.forms import Form, Upload
from service.job import Job, NewJob, new_job_id
from service.jobs import JobStore, KeyConflict, QueueFull
from service.settings import Settings
from service.strict_json import broken_rules, parse_json
from service.uploads import evaluations_folder, save_inputs

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_RETRY_AFTER_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request whose parts have the right types; the images are not opened yet."""

    spec: EvaluationSpec
    images: Sequence[Upload]
    archive: Upload | None
    labels: str | None
    idempotency_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Accepts evaluations.

    Attributes:
        store: the table of evaluations.
        settings: limits and the state folder.
        find_model: the artifact for `name`, `name:version` or None (the default model); raises
            ApiError 404 for an unknown one.
    """

    store: JobStore
    settings: Settings
    find_model: Callable[[str | None], Artifact]

    def accept(self, submission: Submission) -> tuple[Job, bool]:
        """Store the files, then the row; reads and writes files, so call it in a thread.

        Returns:
            The job, and whether it is new (not the answer to a repeated request).

        Raises:
            ApiError: something is not acceptable; nothing is left behind.
            OSError: the disk is full.
        """
        fingerprint = _fingerprint(submission)
        known = self._known(submission.idempotency_key, fingerprint)
        if known is not None:
            return known, False
        self._check_limits(submission)
        artifacts = self._artifacts(submission.spec)
        if self.store.waiting() >= self.settings.queue_length:
            raise _queue_full(self.settings)
        job_id = new_job_id()
        folder = evaluations_folder(self.settings.state) / job_id
        samples = save_inputs(
            folder,
            images=submission.images,
            archive=submission.archive,
            labels=submission.labels,
            label_names=artifacts[0].labels,
            settings=self.settings,
        )
        new = _new_job(job_id, submission, artifacts, samples, fingerprint)
        return self._submit(new, folder)

    def _submit(self, new: NewJob, folder: Path) -> tuple[Job, bool]:
        created = False
        try:
            job, created = self.store.submit(new, queue_length=self.settings.queue_length)
        except QueueFull:
            raise _queue_full(self.settings) from None
        except KeyConflict:
            raise _key_conflict() from None
        finally:
            if not created:
                shutil.rmtree(folder, ignore_errors=True)
        return job, created

    def _known(self, key: str | None, fingerprint: str) -> Job | None:
        try:
            return self.store.find_key(key, fingerprint)
        except KeyConflict:
            raise _key_conflict() from None

    def _artifacts(self, spec: EvaluationSpec) -> list[Artifact]:
        artifacts = [self.find_model(spec.model)]
        if spec.compare_with is not None:
            artifacts.append(self.find_model(spec.compare_with))
            if artifacts[0].digest == artifacts[1].digest:
                raise _invalid_spec("compare_with must name another model than model")
            if artifacts[0].labels != artifacts[1].labels:
                raise _invalid_spec("model and compare_with must have the same labels")
        return artifacts

    def _check_limits(self, submission: Submission) -> None:
        attacks, settings = submission.spec.attacks, self.settings
        counts = [("attacks", "attacks", len(attacks), settings.evaluation_max_attacks)]
        for index, attack in enumerate(attacks):
            radii, steps = len(attack.eps), attack.num_steps
            counts += [
                (f"attacks.{index}.eps", "radii", radii, settings.evaluation_max_eps),
                (f"attacks.{index}.steps", "steps", steps, settings.evaluation_max_steps),
            ]
        for field, what, count, limit in counts:
            if count > limit:
                raise _invalid_spec(f"{field}: {count} {what} are more than the {limit} allowed")


def read_submission(form: Form, key: str | None) -> Submission:
    """Sort out the fields `spec`, `labels`, `images` and `archive` of a form.

    Args:
        form: the form, of these fields only.
        key: the Idempotency-Key header, or None.

    Raises:
        ApiError: a part is missing or repeated, or the spec is not acceptable.
    """
    if key is not None and not _KEY.fullmatch(key):
        message = "Idempotency-Key must be 1 to 255 visible ASCII characters."
        raise ApiError(422, "invalid_idempotency_key", message)
    if "spec" not in form.fields:
        raise ApiError(422, "no_spec", "The field `spec` is missing.")
    images, archives = form.files["images"], form.files["archive"]
    if len(archives) > 1 or (images and archives):
        message = "Send either files in `images` or one file in `archive`."
        raise ApiError(422, "ambiguous_images", message)
    if not images and not archives:
        message = "There is no image: send files in `images` or one zip or parquet in `archive`."
        raise ApiError(422, "no_images", message)
    return Submission(
        spec=read_spec(form.fields["spec"]),
        images=images,
        archive=archives[0] if archives else None,
        labels=form.fields.get("labels"),
        idempotency_key=key,
    )


def read_spec(text: str) -> EvaluationSpec:
    """Read the part `spec`.

    Raises:
        ApiError: 400 invalid_json, or 422 invalid_spec with every broken rule in `details`.
    """
    content = parse_json(text, "spec")
    try:
        return EvaluationSpec.model_validate(content)
    except ValidationError as error:
        problems = broken_rules(error)
    first = problems[0]
    separator = ": " if first["field"] else ""
    raise _invalid_spec(f"{first['field']}{separator}{first['message']}", problems)


def _fingerprint(submission: Submission) -> str:
    content: dict[str, Any] = {
        "spec": submission.spec.model_dump(mode="json"),
        "labels": submission.labels,
        "images": [_digest(image) for image in submission.images],
        "archive": submission.archive and _digest(submission.archive),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _digest(upload: Upload) -> list[str]:
    return [upload.name, hashlib.sha256(upload.content).hexdigest()]


def _new_job(
    job_id: str,
    submission: Submission,
    artifacts: Sequence[Artifact],
    samples: int,
    fingerprint: str,
) -> NewJob:
    spec = submission.spec.model_dump(mode="json", exclude_none=True)
    elliptical = [bool(artifact.manifest.config.get("elliptical")) for artifact in artifacts]
    return NewJob(
        id=job_id,
        spec=spec | {"model": submission.spec.model or artifacts[0].name},
        models=[{"name": a.name, "version": a.version, "digest": a.digest} for a in artifacts],
        samples=samples,
        cost=cost(submission.spec, samples, elliptical),
        fingerprint=fingerprint,
        idempotency_key=submission.idempotency_key,
    )


def _invalid_spec(message: str, details: object = None) -> ApiError:
    return ApiError(422, "invalid_spec", f"The spec is not acceptable: {message}.", details)


def _key_conflict() -> ApiError:
    message = "This Idempotency-Key was used for another request."
    return ApiError(409, "idempotency_conflict", message)


def _queue_full(settings: Settings) -> ApiError:
    message = f"{settings.queue_length} evaluations are waiting; try again later."
    return ApiError(429, "queue_full", message, headers={"Retry-After": str(_RETRY_AFTER_S)})
