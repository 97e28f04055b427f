"""The routes of `/v1/evaluations`: they read and write rows and files, and never evaluate."""

import errno
import re
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from export.artifact import Artifact
from service.errors import ApiError
from service.forms import read_form
from service.intake import Intake, read_submission
from service.job import STATUSES, Job
from service.jobs import JobStore
from service.openapi import describe
from service.settings import Settings
from service.uploads import REPORT, evaluations_folder

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
    "archive": _FILE | {"description": "zip or parquet"},
    "labels": {"type": "string", "description": "a JSON list, or csv `file,label`"},
}
_PAGE_QUERY = {
    "limit": {"type": "integer", "minimum": 1, "maximum": _MAX_PAGE},
    "cursor": {"type": "string"},
    "status": {"type": "string", "enum": list(STATUSES)},
}


def routes(
    store: JobStore, settings: Settings, find_model: Callable[[str | None], Artifact]
) -> list[Route]:
    """The routes, for the application that is mounted at `/`.

    Args:
        store: the table of evaluations.
        settings: limits and the state folder.
        find_model: the artifact for `name`, `name:version` or None (the default model); raises
            ApiError 404 for an unknown one.
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
        Route(one + "/report.json", front.report, methods=["GET"]),
        Route(one + "/samples/{index}/{kind}.png", front.sample, methods=["GET"]),
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
            fields=("spec", "labels"),
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
        job = await self._job(request)
        until = time.monotonic() + _wait(request)
        while job.active and time.monotonic() < until:
            await anyio.sleep(_POLL_S)
            if await request.is_disconnected():
                break
            job = await self._job(request)
        return JSONResponse(_overview(job) | {"result": job.result})

    @describe(
        answer=dict[str, Any],
        status=202,
        empty=204,
        errors=(404, 410, 507),
    )
    async def remove(self, request: Request) -> Response:
        """Cancel an active evaluation (202) or delete a finished one (204)."""
        job = await self._job(request)
        if job.active:
            await to_thread.run_sync(self.store.request_cancel, job.id)
            return JSONResponse(_overview(await self._job(request)), status_code=202)
        async with _disk_errors():
            await to_thread.run_sync(self._delete, job)
        return Response(status_code=204)

    @describe(answer=dict[str, Any], errors=(404, 409, 410))
    async def report(self, request: Request) -> Response:
        """The report of an evaluation."""
        path = await self._report_folder(request) / "report.json"
        if not await anyio.Path(path).is_file():
            raise ApiError(404, "no_report", "The report's file is no longer there.")
        return FileResponse(path, media_type="application/json", filename="report.json")

    @describe(
        answer=bytes,
        media_type="image/png",
        query={name: {"type": "string"} for name in ("attack", "eps", "model")},
        errors=(404, 409, 410),
    )
    async def sample(self, request: Request) -> Response:
        """A sample of an evaluation: clean, adversarial, or their difference."""
        folder = await self._report_folder(request)
        index, kind = request.path_params["index"], request.path_params["kind"]
        if not re.fullmatch(r"[0-9]{1,9}", index):
            raise _no_such_sample(f"there is no sample {index[:20]!r}")
        names = {name: request.query_params.get(name) for name in ("attack", "eps", "model")}
        content = await to_thread.run_sync(_picture, folder, int(index), kind, names)
        return Response(content, media_type="image/png")

    def _delete(self, job: Job) -> None:
        if self.store.delete(job.id):
            shutil.rmtree(evaluations_folder(self.settings.state) / job.id, ignore_errors=True)

    async def _job(self, request: Request) -> Job:
        job = await to_thread.run_sync(self.store.get, request.path_params["id"])
        if job is None:
            raise ApiError(404, "unknown_evaluation", "There is no evaluation with this id.")
        if job.deleted is not None:
            raise ApiError(410, "evaluation_deleted", "This evaluation was deleted.")
        return job

    async def _report_folder(self, request: Request) -> Path:
        job = await self._job(request)
        if job.active:
            message = f"The evaluation is {job.status}; its report comes when it has succeeded."
            raise ApiError(409, "evaluation_not_finished", message)
        if job.status != "succeeded":
            raise ApiError(404, "no_report", f"The evaluation has {job.status} without a report.")
        return evaluations_folder(self.settings.state) / job.id / REPORT


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


def _picture(folder: Path, index: int, kind: Any, names: dict[str, str | None]) -> bytes:
    from robustness.report.pictures import NoSuchSample, picture  # a front may never draw one

    try:
        return picture(folder, index, kind, **names)
    except NoSuchSample as error:
        raise _no_such_sample(str(error)) from error


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
        "links": {
            "self": own,
            "report": f"{own}/report.json" if job.status == "succeeded" else None,
        },
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


def _no_such_sample(message: str) -> ApiError:
    return ApiError(404, "no_such_sample", message[0].upper() + message[1:] + ".")
