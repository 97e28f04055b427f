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
from export.manifest import Task
from robustness.spec import EvaluationSpec, cost
from service.allowance import check_classes, check_cost, check_sizes, spec_error
from service.errors import ApiError
from service.forms import Form, Upload
from service.job import Job, NewJob, new_job_id
from service.jobs import JobStore, KeyConflict, QueueFull
from service.registry import IMAGES, TEXTS
from service.settings import Settings
from service.strict_json import broken_rules, parse_json
from service.text_uploads import read_texts
from service.uploads import Uploads, evaluations_folder, save_inputs

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_RETRY_AFTER_S = 10

FindModel = Callable[[str | None, Task], Artifact]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A request whose parts have the right types; images and archives are not opened yet."""

    spec: EvaluationSpec
    uploads: Uploads
    idempotency_key: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
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
        fingerprint = _fingerprint(submission)
        known = self._known(submission.idempotency_key, fingerprint)
        if known is not None:
            return known, False
        check_sizes(submission.spec, self.settings)
        artifacts = self._artifacts(submission.spec)
        check_classes(submission.spec, len(artifacts[0].labels))
        if self.store.waiting() >= self.settings.queue_length:
            raise _queue_full(self.settings)
        job_id = new_job_id()
        folder = evaluations_folder(self.settings.state) / job_id
        samples = save_inputs(
            folder, submission.uploads, artifacts=artifacts, settings=self.settings
        )
        new = _new_job(job_id, submission, artifacts, samples, fingerprint)
        return self._submit(new, folder)

    def _submit(self, new: NewJob, folder: Path) -> tuple[Job, bool]:
        created = False
        try:
            check_cost(new.cost, self.settings)
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
        task = TEXTS if spec.on_texts else IMAGES
        artifacts = [self.find_model(spec.model, task)]
        if spec.compare_with is not None:
            artifacts.append(self.find_model(spec.compare_with, task))
            if artifacts[0].digest == artifacts[1].digest:
                raise _incomparable("must name another model than model")
            if artifacts[0].labels != artifacts[1].labels:
                raise _incomparable("must have the same labels as model")
        return artifacts


def read_submission(form: Form, key: str | None) -> Submission:
    """Sort out the fields `spec`, `labels`, `images`, `texts` and `archive` of a form.

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
    spec = read_spec(form.fields["spec"])
    return Submission(spec=spec, uploads=_uploads(form, spec), idempotency_key=key)


def _uploads(form: Form, spec: EvaluationSpec) -> Uploads:
    images, archives, texts = form.files["images"], form.files["archive"], form.fields.get("texts")
    what, other = ("texts", images) if spec.on_texts else ("images", texts)
    if other:
        message = f"attacks.0.name: {spec.attacks[0].name!r} works on {what}; send `{what}`."
        raise ApiError(422, "wrong_inputs", message)
    single = images or texts is not None
    if len(archives) > 1 or (single and archives):
        message = f"Send either {what} in `{what}` or one file in `archive`."
        raise ApiError(422, f"ambiguous_{what}", message)
    if not single and not archives:
        kinds = "csv or parquet" if spec.on_texts else "zip or parquet"
        message = f"There is no {what[:-1]}: send some in `{what}` or one {kinds} in `archive`."
        raise ApiError(422, f"no_{what}", message)
    return Uploads(
        on_texts=spec.on_texts,
        images=images,
        texts=() if texts is None else read_texts(texts),
        archive=archives[0] if archives else None,
        labels=form.fields.get("labels"),
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
    raise spec_error(problems)


def _fingerprint(submission: Submission) -> str:
    uploads = submission.uploads
    content: dict[str, Any] = {
        "spec": submission.spec.model_dump(mode="json"),
        "labels": uploads.labels,
        "images": [_digest(image) for image in uploads.images],
        "texts": list(uploads.texts),
        "archive": uploads.archive and _digest(uploads.archive),
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
        cost=cost(submission.spec, samples, elliptical, num_classes=len(artifacts[0].labels)),
        fingerprint=fingerprint,
        idempotency_key=submission.idempotency_key,
    )


def _incomparable(rule: str) -> ApiError:
    return spec_error([{"field": "compare_with", "message": rule}])


def _key_conflict() -> ApiError:
    message = "This Idempotency-Key was used for another request."
    return ApiError(409, "idempotency_conflict", message)


def _queue_full(settings: Settings) -> ApiError:
    message = f"{settings.queue_length} evaluations are waiting; try again later."
    return ApiError(429, "queue_full", message, headers={"Retry-After": str(_RETRY_AFTER_S)})
