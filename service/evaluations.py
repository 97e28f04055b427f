"""The routes of `/v1/evaluations`: they read and write rows and files, and never evaluate."""

import errno
import re
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from service import evidence
from service.errors import ApiError
from service.evidence import find_job
from service.forms import read_form
from service.intake import FindModel, Intake, read_submission
from service.job import STATUSES, Job
from service.jobs import JobStore
from service.openapi import describe
from service.settings import Settings
from service.uploads import evaluations_folder

_PREFIX = "/v1/evaluations"
_MAX_WAIT_S = 30.0
_POLL_S = 0.2
_MAX_PAGE = 100
# Decoding uploads takes processor time; more at once would only delay predictions.
_UPLOADS_AT_ONCE = 2

_FILE = {"type": "string", "format": "binary"}
_FORM = {
    "spec": {"type": "string", "description": "JSON"},
    "images": {"type": "array", "items": _FILE},
    "texts": {"type": "string", "description": "a JSON list of texts"},
    "archive": _FILE | {"description": "zip or parquet of images, csv or parquet of texts"},
    "labels": {"type": "string", "description": "a JSON list, or csv `file,label`"},
}
_PAGE_QUERY = {
    "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_PAGE},
    "cursor": {"type": "string"},
    "status": {"type": "string", "enum": list(STATUSES)},
}


def routes(store: JobStore, settings: Settings, find_model: FindModel) -> list[Route]:
    """The routes, for the application that is mounted at `/`.

    Args:
        store: the table of evaluations.
        settings: limits and the state folder.
        find_model: see `Intake`.
    """
    front = _Evaluations(
        store=store,
        settings=settings,
        intake=Intake(store=store, settings=settings, find_model=find_model),
        uploads=CapacityLimiter(_UPLOADS_AT_ONCE),
    )
    one = _PREFIX + "/{id}"
    return [
        Route(_PREFIX, front.create, methods=["POST"]),
        Route(_PREFIX, front.index, methods=["GET"]),
        Route(one, front.show, methods=["GET"]),
        Route(one, front.remove, methods=["DELETE"]),
        *evidence.routes(store, settings, one),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evaluations:
    store: JobStore
    settings: Settings
    intake: Intake
    uploads: CapacityLimiter

    @describe(
        answer=dict[str, Any],
        status=202,
        form=_FORM,
        required=["spec"],
        errors=(400, 404, 408, 409, 413, 415, 422, 429, 507),
    )
    async def create(self, request: Request) -> Response:
        """Accept an evaluation."""
        form = await read_form(
            request,
            files=("images", "archive"),
            fields=("spec", "labels", "texts"),
            max_files=self.settings.evaluation_max_samples,
        )
        submission = read_submission(form, request.headers.get("idempotency-key"))
        async with _disk_errors():
            job, created = await to_thread.run_sync(
                self.intake.accept, submission, limiter=self.uploads
            )
            speed = await to_thread.run_sync(self.store.seconds_per_evaluation, job.models)
        headers = {"Location": f"{_PREFIX}/{job.id}"}
        if not created:
            headers["Idempotency-Replayed"] = "true"
        seconds = None if speed is None else round(speed * job.cost, 1)
        body = {
            "id": job.id,
            "status": job.status,
            "cost": {"model_evaluations": job.cost, "seconds": seconds},
        }
        return JSONResponse(body, status_code=202, headers=headers)

    @describe(answer=dict[str, Any], query=_PAGE_QUERY, errors=(422,))
    async def index(self, request: Request) -> Response:
        """List evaluations."""
        limit = _integer(request, "limit", 20, 1, _MAX_PAGE)
        cursor = _integer(request, "cursor", None, 1, 2**62)
        status = request.query_params.get("status")
        if status is not None and status not in STATUSES:
            raise _invalid_query(f"status must be one of {', '.join(STATUSES)}")
        jobs, following = await to_thread.run_sync(
            lambda: self.store.page(limit=limit or 20, cursor=cursor, status=status)
        )
        evaluations = [_overview(job) for job in jobs]
        cursor_text = None if following is None else str(following)
        return JSONResponse({"evaluations": evaluations, "next_cursor": cursor_text})

    @describe(
        answer=dict[str, Any],
        query={"wait": {"type": "number", "minimum": 0, "maximum": _MAX_WAIT_S}},
        errors=(404, 410, 422),
    )
    async def show(self, request: Request) -> Response:
        """State, progress and result of an evaluation."""
        job = await find_job(self.store, request)
        until = time.monotonic() + _wait(request)
        while job.active and time.monotonic() < until:
            await anyio.sleep(_POLL_S)
            if await request.is_disconnected():
                break
            job = await find_job(self.store, request)
        return JSONResponse(_overview(job) | {"result": job.result})

    @describe(
        answer=dict[str, Any],
        status=202,
        empty=204,
        errors=(404, 410, 507),
    )
    async def remove(self, request: Request) -> Response:
        """Cancel an active evaluation (202) or delete a finished one (204)."""
        job = await find_job(self.store, request)
        if job.active:
            await to_thread.run_sync(self.store.request_cancel, job.id)
            return JSONResponse(_overview(await find_job(self.store, request)), status_code=202)
        async with _disk_errors():
            await to_thread.run_sync(self._delete, job)
        return Response(status_code=204)

    def _delete(self, job: Job) -> None:
        if self.store.delete(job.id):
            shutil.rmtree(evaluations_folder(self.settings.state) / job.id, ignore_errors=True)


@asynccontextmanager
async def _disk_errors() -> AsyncIterator[None]:
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if full or getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            message = "The disk of the service is full; nothing was accepted."
            raise ApiError(507, "disk_full", message) from error
        raise


def _overview(job: Job) -> dict[str, Any]:
    models = [model["name"] for model in job.models]
    own = f"{_PREFIX}/{job.id}"
    return {
        "id": job.id,
        "status": job.status,
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
        "links": {"self": own, **evidence.links(job, own)},
    }


def _moment(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def _wait(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    if not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", text) or float(text) > _MAX_WAIT_S:
        raise _invalid_query(f"wait must be a number of seconds from 0 to {_MAX_WAIT_S:.0f}")
    return float(text)


def _integer(request: Request, name: str, default: int | None, least: int, most: int) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise _invalid_query(f"{name} must be a whole number from {least} to {most}")
    return int(text)


def _invalid_query(message: str) -> ApiError:
    return ApiError(422, "invalid_query", f"Query parameter {message}.")
