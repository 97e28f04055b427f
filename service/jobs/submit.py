"""From a request to an accepted evaluation: everything is checked before it is promised."""

import dataclasses
import errno
import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from core.names import sentence
from robustness.attacks.base import Access, Attack, shown
from robustness.spec import EvaluationSpec, cost, parse_gate, queries
from robustness.tasks import NextTokens, Segmentation
from runtimes.artifact import Artifact
from runtimes.manifest import TOKENIZER
from runtimes.tasks import IMAGES, LANGUAGE, MASKS, TASKS, TEXTS, Answer, Task
from service.decoding.pool import Request
from service.http.body import Upload
from service.http.documents import MAX_DETAILS
from service.http.keys import Caller
from service.http.refusal import ApiError, check_samples
from service.jobs.queue import JobStore
from service.jobs.room import Limits, Need
from service.jobs.table import PRIORITIES, Job, NewJob, Priority, new_job_id
from service.jobs.targets import RemoteTarget
from service.jobs.uploads import Uploads, evaluations_folder, save_inputs, stored_bytes
from service.settings import Settings
from service.tracing import traceparent

Model = Artifact | RemoteTarget
_ALSO: dict[Task, Task] = {IMAGES: MASKS, TEXTS: LANGUAGE}
"""What else is evaluated on the inputs of a task."""
FindModel = Callable[[str | None, Task], Model]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The request for an evaluation, and who sent it."""

    spec: EvaluationSpec
    uploads: Uploads
    idempotency_key: str | None
    caller: Caller
    sharer: str
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
class Estimate:
    """What an evaluation takes at most.

    Attributes:
        evaluations: of models.
        queries: inputs that a remote endpoint is asked about; None where there is none.
        amount: what these cost, where the operator gave a price.
    """

    evaluations: int
    queries: int | None = None
    amount: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """Accepts evaluations.

    Attributes:
        store: the table of evaluations.
        settings: limits and the state folder.
        find_model: the artifact for `name`, `name:version` or None (the default model) that does
            a task, or the endpoint of that name; raises ApiError 404 for an unknown one and 422 for
            one of another task.
    """

    store: JobStore
    settings: Settings
    find_model: FindModel

    def accept(self, submission: Submission, images: Request) -> tuple[Job, bool, Estimate | None]:
        """Store the files, then the row; reads and writes files, so call it in a thread.

        Args:
            submission: what is asked for.
            images: decodes its images.

        Returns:
            The job, whether it is new (not the answer to a repeated request), and if so what it
            takes.

        Raises:
            ApiError: something is not acceptable; nothing is left behind.
            CancelledError: the images were given up; nothing is left behind.
            OSError: the disk is full.
        """
        caller, fingerprint = submission.caller, submission.fingerprint
        known = self.store.find_key(caller.name, submission.idempotency_key, fingerprint)
        if known is not None:
            return known, False, None
        models = self._check(submission.spec)
        limits = self._limits(caller)
        need = Need(
            owner=caller.name,
            sharer=submission.sharer,
            priority=PRIORITIES[submission.priority],
            cost=1,  # refuses what would be refused whatever it costs
            stored=submission.uploads.size,
        )
        self.store.check_room(need, limits)  # before files are decoded; `submit` looks again
        self._check_disk(need.stored)
        job_id = new_job_id()
        folder = evaluations_folder(self.settings.state) / job_id
        images.check()
        samples = save_inputs(
            folder,
            submission.uploads,
            models=models,
            settings=self.settings,
            images=images,
            class_map=submission.spec.class_map,
        )
        created = False
        try:
            takes = self._estimate(submission.spec, samples, models)
            new = _new_job(job_id, submission, models, samples, fingerprint, takes.evaluations)
            new = dataclasses.replace(new, stored=stored_bytes(folder))
            if limits.budget is not None and new.cost > limits.budget:
                rule = f"more than this key's {limits.budget:,} model evaluations"
                raise _too_expensive(f"The evaluation takes {rule}.", new.cost, limits.budget)
            images.check()
            job, created = self.store.submit(new, limits)
        finally:
            if not created:
                shutil.rmtree(folder, ignore_errors=True)
        return job, created, takes if created else None

    def _limits(self, caller: Caller) -> Limits:
        settings, budget = self.settings, caller.evaluations_budget
        stored = int(settings.stored_mb * 1_000_000)
        return Limits(queue_length=settings.queue_length, stored=stored, budget=budget)

    def resume(self, job: Job, caller: Caller) -> bool:
        """Queue a cancelled evaluation again, whose cost was counted when it was accepted.

        Returns:
            Whether it was cancelled, and now is queued.

        Raises:
            ApiError: the queue, or its sharer's part of the disk, is full.
            OSError: the disk is full.
        """
        self._check_disk(0)
        need = Need(owner=job.owner, sharer=job.sharer, priority=job.priority, cost=0, stored=0)
        return self.store.resume(job.id, need, self._limits(caller))

    def _check_disk(self, size: int) -> None:
        free = shutil.disk_usage(self.settings.state).free
        if free - size < self.settings.free_mb * 1_000_000:
            raise OSError(errno.ENOSPC, "less is free than ASSAY_FREE_MB")

    def estimate(self, spec: EvaluationSpec, samples: int) -> tuple[Estimate, list[dict[str, str]]]:
        """What an evaluation of so many inputs would cost, and the models in it.

        Raises:
            ApiError: it would not be accepted.
        """
        models = self._check(spec)
        most = self.settings.evaluation_max_samples
        check_samples(samples, most, "texts" if spec.on_texts else "images")
        return self._estimate(spec, samples, models), _names(models)

    def _estimate(self, spec: EvaluationSpec, samples: int, models: Sequence[Model]) -> Estimate:
        num_classes = len(models[0].labels)
        elliptical = [model.elliptical for model in models]
        evaluations = cost(spec, samples, elliptical, num_classes=num_classes)
        _check_cost(evaluations, self.settings)
        target = models[0]
        if not isinstance(target, RemoteTarget):
            return Estimate(evaluations=evaluations)
        copy = target.elliptical if target.surrogate else None
        asked = queries(spec, samples, num_classes, elliptical=copy)
        most, price = target.entry.max_queries, target.entry.price
        if most is not None and asked > most:
            message = (
                f"The evaluation asks {target.name!r} about up to {asked:,} inputs, more than the "
                f"{most:,} allowed; send fewer inputs, attacks, points, queries or samples."
            )
            raise ApiError(422, "too_expensive", message, {"queries": asked, "limit": most})
        amount = None if price is None else round(asked * price / 1000, 2)
        return Estimate(evaluations=evaluations, queries=asked, amount=amount)

    def _check(self, spec: EvaluationSpec) -> list[Model]:
        _check_sizes(spec, self.settings)
        models = self._models(spec)
        _check_attacks(spec, models)
        return models

    def _models(self, spec: EvaluationSpec) -> list[Model]:
        task = TEXTS if spec.on_texts else IMAGES
        models = [self._find(spec.model, task)]
        if spec.compare_with is not None:
            models.append(self._find(spec.compare_with, task))
            if any(isinstance(model, RemoteTarget) for model in models):
                raise _incomparable("has a meaning for models that are served here only")
            if models[0].digest == models[1].digest:
                raise _incomparable("must name another model than model")
            if models[0].task != models[1].task or models[0].labels != models[1].labels:
                raise _incomparable("must have the same labels as model")
            if _tokens(models[0]) != _tokens(models[1]):
                raise _incomparable("must have the same tokens as model: perplexity is by token")
        return models

    def _find(self, reference: str | None, task: Task) -> Model:
        """The model of that name, which may do another task with such inputs."""
        try:
            return self.find_model(reference, task)
        except ApiError as error:
            if task not in _ALSO or error.details != {"task": _ALSO[task]}:
                raise
            return self.find_model(reference, _ALSO[task])


def _new_job(
    job_id: str,
    submission: Submission,
    models: Sequence[Model],
    samples: int,
    fingerprint: str,
    evaluations: int,
) -> NewJob:
    spec = submission.spec.model_dump(mode="json", exclude_none=True)
    return NewJob(
        id=job_id,
        spec=spec | {"model": submission.spec.model or models[0].name},
        models=_names(models),
        samples=samples,
        cost=evaluations,
        fingerprint=fingerprint,
        owner=submission.caller.name,
        sharer=submission.sharer,
        priority=PRIORITIES[submission.priority],
        idempotency_key=submission.idempotency_key,
        traceparent=traceparent(),
    )


def _names(models: Sequence[Model]) -> list[dict[str, str]]:
    return [{"name": m.name, "version": m.version, "digest": m.digest} for m in models]


def _tokens(model: Model) -> str | None:
    """The digest of a language model's tokenizer."""
    if isinstance(model, RemoteTarget) or model.task != LANGUAGE:
        return None
    return model.manifest.files[TOKENIZER]


def _incomparable(rule: str) -> ApiError:
    return spec_error([{"field": "compare_with", "message": rule}])


def _digest(upload: Upload) -> list[str]:
    return [upload.name, hashlib.sha256(upload.content).hexdigest()]


def _check_sizes(spec: EvaluationSpec, settings: Settings) -> None:
    """Refuse a spec with more attacks, points, steps, queries or directions than allowed."""
    counts = [("attacks", "attacks", len(spec.attacks), settings.evaluation_max_attacks)]
    for index, attack in enumerate(spec.attacks):
        for field, what, count, limit in _counts(attack, settings):
            counts.append((f"attacks.{index}.{field}", what, count, limit))
    problems = [
        {"field": field, "message": f"{count} {what} are more than the {limit} allowed"}
        for field, what, count, limit in counts
        if count > limit
    ]
    if problems:
        raise spec_error(problems)


def _check_attacks(spec: EvaluationSpec, models: Sequence[Model]) -> None:
    """Refuse what needs more classes than a model has, or more than it shows."""
    problems = []
    for index, attack in enumerate(spec.attacks):
        rules = (
            attack.refusal(each.name, len(each.labels), _access(each), TASKS[each.task].answer)
            for each in models
        )
        if rule := next(filter(None, rules), None):
            problems.append({"field": f"attacks.{index}.name", "message": rule})
    target = models[0]
    if isinstance(target, RemoteTarget) and 0 < target.shows[1] < max(spec.top_k):
        seen = target.shows[1]
        rule = f"must be at most {seen}, the classes that {target.name!r} shows"
        problems.append({"field": "top_k", "message": rule})
    problems += _of_answer(spec, TASKS[target.task].answer)
    if problems:
        raise spec_error(problems)


def _of_answer(spec: EvaluationSpec, answer: Answer) -> Iterator[dict[str, str]]:
    """What says nothing about the classes of pixels, or about next tokens."""
    if answer == "class":
        return
    pixels = answer == "pixels"
    task, what = (Segmentation, "segmenter") if pixels else (NextTokens, "language model")
    if spec.top_k != [1]:
        yield {"field": "top_k", "message": f"must be [1] for a {what}"}
    if spec.class_map is not None:
        why = "masks hold its indices" if pixels else "it has no classes"
        yield {"field": "class_map", "message": f"must be left out for a {what}: {why}"}
    if spec.gate is not None and parse_gate(spec.gate).metric not in task.gates:
        rule = f"must compare {' or '.join(task.gates)} for a {what}"
        yield {"field": "gate", "message": rule}
    if spec.stop == "early" and answer == "tokens":
        yield {"field": "stop", "message": "must be 'end' for a language model"}


def _access(model: Model) -> list[Access]:
    """What a model shows to attacks."""
    if isinstance(model, RemoteTarget):
        return model.access
    found = model.manifest
    return shown(
        gradients=model.gradients, weights=found.provable, token_wise=found.token_wise,
        graph=found.readable_graph,
    )  # fmt: skip


def _counts(attack: Attack, settings: Settings) -> Iterator[tuple[str, str, int, int]]:
    field = attack.info.budget
    what = "radii" if attack.info.norms else "values"
    if attack.info.role != "corruption":  # there are few
        yield field, what, len(attack.budgets()), settings.evaluation_max_eps
    limits = {
        "steps": settings.evaluation_max_steps,
        "queries": settings.evaluation_max_queries,
        "directions": settings.evaluation_max_directions,
    }
    for field, (what, count) in attack.sizes().items():
        yield field, what, count, limits[what]


def _check_cost(evaluations: int, settings: Settings) -> None:
    limit = settings.evaluation_max_cost
    if evaluations > limit:
        message = (
            f"The evaluation takes up to {evaluations:,} model evaluations, more than the "
            f"{limit:,} allowed; send fewer inputs, attacks, points, steps, queries or samples."
        )
        raise _too_expensive(message, evaluations, limit)


def _too_expensive(message: str, evaluations: int, limit: int) -> ApiError:
    details = {"model_evaluations": evaluations, "limit": limit}
    return ApiError(422, "too_expensive", message, details)


def spec_error(problems: list[dict[str, str]]) -> ApiError:
    """The refusal of a spec: of each rule that it breaks the field, with dots, and the message."""
    first = problems[0]
    place = f"{first['field']}: " if first["field"] else ""
    message = sentence(f"The spec is not acceptable: {place}{first['message']}")
    return ApiError(422, "invalid_spec", message, problems[:MAX_DETAILS])
