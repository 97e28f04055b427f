"""The routes of `/v1/evaluations`: they read and write rows and files, and never evaluate."""

import errno
import shutil
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import DBAPIError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service.api import evidence
from service.api.cost import SCHEMA, CostRequest, read_cost_request
from service.api.event_stream import Feed
from service.api.events import Events
from service.api.evidence import find_job
from service.api.serializers import PREFIX, overview, price, whole
from service.api.submission import read_submission
from service.http import queries
from service.http.callers import caller_of
from service.http.errors import ApiError
from service.http.forms import read_form
from service.http.openapi import describe
from service.http.queries import strict
from service.jobs.database import is_full
from service.jobs.job import PRIORITIES, STATUSES, Job
from service.jobs.queue import JobStore
from service.jobs.submit import FindModel, Intake
from service.jobs.uploads import evaluations_folder
from service.settings import Settings

_MAX_WAIT_S = 30.0
_LOOK_S = 0.5  # how soon a client that has left is noticed
_PAGE, _MAX_PAGE = 20, 100
# Decoding uploads takes processor time; more at once would only delay predictions.
_UPLOADS_AT_ONCE = 2

_FILE = {"type": "string", "format": "binary"}
_FORM = {
    "spec": {"type": "string", "description": "JSON"},
    "images": {"type": "array", "items": _FILE},
    "texts": {"type": "string", "description": "a JSON list of texts"},
    "archive": _FILE | {"description": "zip or parquet of images, csv or parquet of texts"},
    "labels": {"type": "string", "description": "a JSON list, or csv `file,label`"},
    "priority": {"type": "string", "enum": list(PRIORITIES), "default": "normal"},
}
_PAGE_QUERY = {
    "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_PAGE},
    "cursor": {"type": "string"},
    "status": {"type": "string", "enum": list(STATUSES)},
    "model": {"type": "string", "description": "the name of the model on trial"},
    "owner": {"type": "string", "description": "the name of the caller who sent it"},
}


def routes(store: JobStore, settings: Settings, find_model: FindModel) -> list[Route]:
    """The routes, for the application that is mounted at `/`.

    Args:
        store: the table of evaluations.
        settings: limits and the state folder.
        find_model: see `Intake`.
    """
    feed = Feed(store)
    front = _Evaluations(
        store=store,
        settings=settings,
        intake=Intake(store=store, settings=settings, find_model=find_model),
        feed=feed,
        uploads=CapacityLimiter(_UPLOADS_AT_ONCE),
    )
    events = Events(store, feed, settings.event_streams, whole)
    one = PREFIX + "/{id}"
    return [
        Route(PREFIX, strict(front.create), methods=["POST"]),
        Route(PREFIX, strict(front.index), methods=["GET"]),
        Route(PREFIX + "/cost", strict(front.cost), methods=["POST"]),
        Route(one, strict(front.show), methods=["GET"]),
        Route(one, strict(front.remove), methods=["DELETE"]),
        Route(one + "/events", strict(events.stream), methods=["GET"]),
        *evidence.routes(store, settings, one),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluations:
    store: JobStore
    settings: Settings
    intake: Intake
    feed: Feed
    uploads: CapacityLimiter

    @describe(
        answer=dict[str, Any],
        status=202,
        form=_FORM,
        required=["spec"],
        errors=(400, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507),
    )
    async def create(self, request: Request) -> Response:
        """Accept an evaluation."""
        with _complete_body():
            form = await read_form(
                request,
                files=("images", "archive"),
                fields=("spec", "labels", "texts", "priority"),
                max_files=self.settings.evaluation_max_samples,
            )
        key = request.headers.get("idempotency-key")
        submission = read_submission(form, key, caller_of(request))
        async with _disk_errors():
            job, created = await to_thread.run_sync(
                self.intake.accept, submission, limiter=self.uploads
            )
            seconds = await to_thread.run_sync(self.store.seconds_of, job.models, job.cost)
        headers = {"Location": f"{PREFIX}/{job.id}"}
        if not created:
            headers["Idempotency-Replayed"] = "true"
        body = {"id": job.id, "status": job.status, "queue_position": job.position}
        body["cost"] = price(job.cost, seconds)
        return JSONResponse(body, status_code=202, headers=headers)

    @describe(
        answer=dict[str, Any],
        body=SCHEMA,
        errors=(400, 404, 408, 413, 415, 422, 503),
    )
    async def cost(self, request: Request) -> Response:
        """What an evaluation would cost; nothing is stored."""
        with _complete_body():
            asked = await read_cost_request(request)
        return JSONResponse(await to_thread.run_sync(self._price, asked))

    @describe(answer=dict[str, Any], query=_PAGE_QUERY, errors=(422, 503))
    async def index(self, request: Request) -> Response:
        """List evaluations."""
        sees, owner = caller_of(request).sees, queries.word(request, "owner")
        limit = queries.integer(request, "limit", 1, _MAX_PAGE) or _PAGE
        cursor = queries.integer(request, "cursor", 1, 2**62)
        status = queries.word(request, "status", STATUSES)
        model = queries.word(request, "model")
        jobs, following = [], None
        if sees is None or owner in (None, sees):
            owner = owner if sees is None else sees
            jobs, following = await to_thread.run_sync(
                lambda: self.store.page(
                    limit=limit, cursor=cursor, status=status, owner=owner, model=model
                )
            )
        evaluations = [overview(job) for job in jobs]
        cursor_text = None if following is None else str(following)
        return JSONResponse({"evaluations": evaluations, "next_cursor": cursor_text})

    @describe(
        answer=dict[str, Any],
        query={"wait": {"type": "number", "minimum": 0, "maximum": _MAX_WAIT_S}},
        errors=(404, 410, 422, 503),
    )
    async def show(self, request: Request) -> Response:
        """State, progress and result of an evaluation."""
        until = time.monotonic() + queries.seconds(request, "wait", _MAX_WAIT_S)
        job = await find_job(self.store, request)
        if job.active and time.monotonic() < until:
            await self._wait(request, job.id, until)
            job = await find_job(self.store, request)
        return JSONResponse(whole(job))

    @describe(
        answer=dict[str, Any],
        status=202,
        empty=204,
        errors=(404, 410, 422, 503, 507),
    )
    async def remove(self, request: Request) -> Response:
        """Cancel an active evaluation (202) or delete a finished one (204)."""
        job = await find_job(self.store, request)
        async with _disk_errors():
            if job.active:
                await to_thread.run_sync(self.store.request_cancel, job.id)
                cancelled = await find_job(self.store, request)
                return JSONResponse(overview(cancelled), status_code=202)
            await to_thread.run_sync(self._delete, job)
        return Response(status_code=204)

    async def _wait(self, request: Request, job_id: str, until: float) -> None:
        """Until the evaluation has ended, the client has left, or the server leaves."""
        with self.feed.follow(job_id) as follower:
            while (left := until - time.monotonic()) > 0:
                job = await follower.next(min(left, _LOOK_S))
                if job is not None and not job.active:
                    return
                leaving = getattr(request.app.state, "leaving", False)
                if leaving or await request.is_disconnected():
                    return

    def _price(self, asked: CostRequest) -> dict[str, Any]:
        cost, models = self.intake.estimate(asked.spec, asked.samples)
        return price(cost, self.store.seconds_of(models, cost))

    def _delete(self, job: Job) -> None:
        if self.store.delete(job.id):
            shutil.rmtree(evaluations_folder(self.settings.state) / job.id, ignore_errors=True)
            evidence.forget_deleted()


@contextmanager
def _complete_body() -> Iterator[None]:
    try:
        yield
    except ClientDisconnect as error:  # nobody hears this; nothing was written yet
        raise ApiError(400, "incomplete_body", "The body is not complete.") from error


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
