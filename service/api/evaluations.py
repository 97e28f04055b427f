"""The routes of `/v1/evaluations`: they read and write rows and files, and never evaluate."""

import asyncio
import dataclasses
import errno
import shutil
import time
from collections.abc import AsyncIterator
from concurrent.futures import CancelledError
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any
from weakref import WeakValueDictionary

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DBAPIError
from starlette.routing import BaseRoute

from robustness.attacks.base import Attack, options
from robustness.report import lookup
from robustness.spec import ATTACKS
from service.api import evidence
from service.api.event_stream import MEDIA_TYPE, Events, Feed
from service.api.evidence import find_job
from service.api.schemas import (
    Accepted,
    AttackDescription,
    Cost,
    Evaluation,
    EvaluationPage,
    WholeEvaluation,
)
from service.api.submission import CostRequest, EvaluationForm, check_spec, read_submission
from service.decoding.pool import Decoders
from service.http.auth import access
from service.http.body import Bodies
from service.http.departure import client_left, watching, while_connected
from service.http.documents import SPEC_LIMIT, parse_body, require_type
from service.http.keys import caller_of
from service.http.openapi import body, failures, file
from service.http.refusal import ApiError
from service.http.shares import Shares, sharer_of
from service.jobs.database import is_full
from service.jobs.queue import JobStore
from service.jobs.submit import Estimate, FindModel, Submission, Submitter
from service.jobs.table import Job, Status
from service.jobs.uploads import decoding, evaluations_folder
from service.settings import Settings

PREFIX = "/v1/evaluations"
_MAX_WAIT_S = 30.0
_LOOK_S = 0.5  # how soon a client that has left is noticed
_PAGE, _MAX_PAGE = 20, 100
# Decoding uploads takes processor time; more at once would only delay predictions.
_UPLOADS_AT_ONCE = 2

# Of an attack's facts, what clients and forms are made from.
_INFO = "title what paper references input answers access role budget norms min_classes".split()


def routes(
    store: JobStore, settings: Settings, find_model: FindModel, decoders: Decoders
) -> list[BaseRoute]:
    """The routes; `find_model` is that of `Submitter`."""
    feed, places = Feed(store), Shares(settings.event_streams)
    front = _Evaluations(
        store=store,
        settings=settings,
        submitter=Submitter(store=store, settings=settings, find_model=find_model),
        feed=feed,
        places=places,
        bodies=Bodies.of_uploads(settings),
        decoders=decoders,
        uploads=CapacityLimiter(_UPLOADS_AT_ONCE),
    )
    events = Events(store, feed, places, whole)
    router = APIRouter(dependencies=access("evaluate"))
    add, one = router.add_api_route, PREFIX + "/{id}"
    add(
        PREFIX,
        front.create,
        methods=["POST"],
        status_code=202,
        responses=failures(400, 403, 404, 408, 413, 415, 422, 429, 503, 507) | failures(409),
        openapi_extra=body(EvaluationForm, form=True),
        response_model=Accepted,
    )
    add(PREFIX, front.index, responses=failures(422, 503), response_model=EvaluationPage)
    add(
        PREFIX + "/cost",
        front.cost,
        methods=["POST"],
        responses=failures(400, 404, 408, 413, 415, 422, 503),
        openapi_extra=body(CostRequest),
        response_model=Cost,
    )
    add(one, front.show, responses=failures(404, 410, 422, 503), response_model=WholeEvaluation)
    add(
        one,
        front.remove,
        methods=["DELETE"],
        status_code=202,
        responses={204: {"description": "Deleted"}} | failures(404, 410, 422, 503, 507),
        response_model=Evaluation,
    )
    add(
        one + "/continue",
        front.resume,
        methods=["POST"],
        status_code=202,
        responses=failures(404, 409, 410, 422, 429, 503, 507),
        response_model=Evaluation,
    )
    stream = file(MEDIA_TYPE, 404, 410, 422, 503)
    add(one + "/events", events.stream, response_class=Response, **stream)
    return [*attack_routes(), *router.routes, *evidence.routes(store, settings, one)]


def attack_routes() -> list[BaseRoute]:
    """The route ``/v1/attacks``."""
    router = APIRouter(dependencies=access())
    described = [describe_attack(name, kind) for name, kind in ATTACKS.items()]

    @router.get("/v1/attacks", response_model=list[AttackDescription], responses=failures())
    async def attacks() -> Response:
        """Every attack with its options, budgets, access, titles and references."""
        return JSONResponse(described)

    return router.routes


def describe_attack(name: str, kind: type[Attack]) -> dict[str, Any]:
    """An attack as ``/v1/attacks`` shows it."""
    shown = {field: getattr(kind.info, field) for field in _INFO}
    return {
        "name": name,
        **shown,
        "options": [dataclasses.asdict(option) for option in options(kind)],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluations:
    store: JobStore
    settings: Settings
    submitter: Submitter
    feed: Feed
    places: Shares  # of those who follow
    bodies: Bodies
    decoders: Decoders
    uploads: CapacityLimiter
    lanes: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)

    async def create(self, request: Request) -> Response:
        """Accept an evaluation."""
        async with self.bodies.open(request) as sent, _disk_errors():
            max_files = self.settings.evaluation_max_samples
            form = await sent.form(EvaluationForm, max_files=max_files)
            key = request.headers.get("idempotency-key")
            read = partial(read_submission, form, key, caller_of(request), sent.sharer)
            async with self._lane(request, sent.sharer):
                submission = await to_thread.run_sync(read, limiter=self.uploads)
                job, created, takes = await self._accept(request, submission, sent.sharer)
        seconds = await to_thread.run_sync(self.store.seconds_of, job.models, job.cost)
        headers = {"Location": f"{PREFIX}/{job.id}"}
        if not created:
            headers["Idempotency-Replayed"] = "true"
        body = {"id": job.id, "status": job.status, "queue_position": job.position}
        body["cost"] = price(takes or Estimate(evaluations=job.cost), seconds)
        return JSONResponse(body, status_code=202, headers=headers)

    @asynccontextmanager
    async def _lane(self, request: Request, sharer: str) -> AsyncIterator[None]:
        """One after the other of each sharer, so that none takes all of the threads."""
        lane = self.lanes.setdefault(sharer, asyncio.Lock())
        async with while_connected(request):
            await lane.acquire()
        try:
            yield
        finally:
            lane.release()

    async def _accept(
        self, request: Request, submission: Submission, sharer: str
    ) -> tuple[Job, bool, Estimate | None]:
        """Have a thread accept it, unless the client leaves before."""
        accept, settings = self.submitter.accept, self.settings
        with decoding(submission.uploads, self.decoders, sharer, settings) as images:
            async with watching(request, images.give_up):
                try:
                    return await to_thread.run_sync(
                        accept, submission, images, limiter=self.uploads
                    )
                except CancelledError as error:
                    raise client_left() from error

    async def cost(self, request: Request) -> Response:
        """What an evaluation would cost; nothing is stored."""
        require_type(request, "application/json")
        async with self.bodies.open(request, max_bytes=SPEC_LIMIT.size) as sent:
            content = await sent.read()

        def estimate() -> dict[str, Any]:
            """Costs, and the time that they took before."""
            asked = parse_body(CostRequest, content, SPEC_LIMIT)
            spec = check_spec(asked.spec)
            takes, models = self.submitter.estimate(spec, asked.samples)
            return price(takes, self.store.seconds_of(models, takes.evaluations))

        return JSONResponse(await to_thread.run_sync(estimate))

    async def index(
        self,
        request: Request,
        limit: Annotated[int, Query(ge=1, le=_MAX_PAGE)] = _PAGE,
        cursor: Annotated[int | None, Query(ge=1, le=2**62)] = None,
        status: Status | None = None,
        model: Annotated[str | None, Query(description="name of the evaluated model")] = None,
        owner: Annotated[str | None, Query(description="name of the caller who sent it")] = None,
        search: Annotated[
            str, Query(max_length=100, description="part of name, note, model or attack")
        ] = "",
    ) -> Response:
        """List evaluations; tables of words in their specs are left out."""
        sees = caller_of(request).sees
        jobs, following = [], None
        if sees is None or owner in (None, sees):
            owner = owner if sees is None else sees
            jobs, following = await to_thread.run_sync(
                lambda: self.store.page(
                    limit=limit,
                    cursor=cursor,
                    status=status,
                    owner=owner,
                    model=model,
                    search=search,
                )
            )
        evaluations = [overview(job) | {"spec": _without_tables(job.spec)} for job in jobs]
        cursor_text = None if following is None else str(following)
        return JSONResponse({"evaluations": evaluations, "next_cursor": cursor_text})

    async def show(
        self,
        request: Request,
        id: str,
        wait: Annotated[float, Query(ge=0, le=_MAX_WAIT_S, allow_inf_nan=False)] = 0,
    ) -> Response:
        """State, progress and result of an evaluation."""
        until = time.monotonic() + wait
        job = await find_job(self.store, request, id)
        if job.active and time.monotonic() < until:
            await self._wait(request, job.id, until)
            job = await find_job(self.store, request, id)
        return JSONResponse(whole(job))

    async def remove(self, request: Request, id: str) -> Response:
        """Cancel an active evaluation (202) or delete a finished one (204)."""
        job = await find_job(self.store, request, id)
        async with _disk_errors():
            if job.active:
                await to_thread.run_sync(self.store.request_cancel, job.id)
                cancelled = await find_job(self.store, request, id)
                return JSONResponse(overview(cancelled), status_code=202)
            await to_thread.run_sync(self._delete, job)
        return Response(status_code=204)

    async def resume(self, request: Request, id: str) -> Response:
        """Continue what was cancelled, or failed at its endpoint, from what it has finished."""
        job, caller = await find_job(self.store, request, id), caller_of(request)
        async with _disk_errors():
            resumed = job.continuable and await to_thread.run_sync(
                self.submitter.resume, job, caller
            )
        if not resumed:
            ended = "was cancelled, or failed at its endpoint"
            message = f"The evaluation is {job.status}; only one that {ended} can be continued."
            raise ApiError(409, "evaluation_not_cancelled", message)
        return JSONResponse(overview(await find_job(self.store, request, id)), status_code=202)

    async def _wait(self, request: Request, job_id: str, until: float) -> None:
        """Until the evaluation has ended, the client has left, or the server leaves.

        Who follows as many evaluations as a share allows does not wait.
        """
        sharer = sharer_of(request)
        if not self.places.take(sharer):
            return
        try:
            with self.feed.follow(job_id) as follower:
                while (left := until - time.monotonic()) > 0:
                    job = await follower.next(min(left, _LOOK_S))
                    if job is not None and not job.active:
                        return
                    if request.app.state.leaving or await request.is_disconnected():
                        return
        finally:
            self.places.give_back(sharer)

    def _delete(self, job: Job) -> None:
        if self.store.delete(job.id):
            shutil.rmtree(evaluations_folder(self.settings.state) / job.id, ignore_errors=True)
            lookup.forget_deleted()


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
        "continuable": job.continuable,
        "progress": {
            "done": job.done,
            "total": job.total or job.cost,
            "stage": job.stage,
            "eta_s": None if job.eta is None else round(job.eta, 1),
        },
        "error": job.error,
        "outcome": _outcome(job.result),
        "links": {"self": own, "events": f"{own}/events", **evidence.links(job, own)},
    }


def _without_tables(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec as the list shows it: tables of words, which may be long, are told with each alone."""
    attacks = [
        {key: value for key, value in attack.items() if key != "table"}
        for attack in spec["attacks"]
    ]
    return spec | {"attacks": attacks}


def _outcome(result: dict[str, Any] | None) -> dict[str, Any] | None:
    """What the list shows of a result: of each model a few figures, the gate, and reliability."""
    if result is None:
        return None
    of_model = ("name", "outcome", "clean", "largest", "corrupted")
    models = [{key: model.get(key) for key in of_model} for model in result["models"]]
    told = {key: result.get(key) for key in ("headline", "metric", "gate", "reliable")}
    return {**told, "models": models}


def whole(job: Job) -> dict[str, Any]:
    """What an evaluation shows of itself."""
    return overview(job) | {"result": job.result}


def price(takes: Estimate, seconds: float | None) -> dict[str, Any]:
    """What an evaluation costs, and seconds where they can be told."""
    return {
        "model_evaluations": takes.evaluations,
        "queries": takes.queries,
        "amount": takes.amount,
        "seconds": None if seconds is None else round(seconds, 1),
    }


def _moment(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


@asynccontextmanager
async def _disk_errors() -> AsyncIterator[None]:
    try:
        yield
    except (OSError, DBAPIError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full or (isinstance(error, DBAPIError) and is_full(error)):
            message = "The disk of the service is full; nothing was accepted."
            raise ApiError(507, "disk_full", message) from error
        raise
