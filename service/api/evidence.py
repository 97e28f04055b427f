"""What a finished evaluation leaves to read: its report in several forms, and its samples."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute

from robustness.report import lookup
from robustness.report.schema import Report
from service.api.schemas import TextSample
from service.http.auth import access
from service.http.keys import caller_of
from service.http.openapi import failures, file
from service.http.refusal import ApiError
from service.jobs.queue import JobStore
from service.jobs.table import Job
from service.jobs.uploads import REPORT, evaluations_folder
from service.settings import Settings

# The page of a report brings its style and its pictures along, and nothing may run in it or leave
# it. Its style is named by digest in the page itself; both policies hold.
_PAGE_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; sandbox"
)
# What strangers uploaded is kept by no proxy, and asked for again once it is deleted.
_PRIVATE = {"cache-control": "private, no-cache"}
_ERRORS = (404, 409, 410, 422, 503)


@dataclass(frozen=True, slots=True)
class _Form:
    """One form of the report: its name among links, and how a browser is told of it."""

    link: str
    media_type: str
    what: str
    shown: bool = False


_FORMS = {
    "report.json": _Form("report", "application/json", "The report of an evaluation."),
    "report.html": _Form(
        "html", "text/html", "The report as a page in one file, without scripts.", shown=True
    ),
    "report.junit.xml": _Form(
        "junit",
        "application/xml",
        "The report as JUnit XML: a test case for each model and attack, and the gate.",
    ),
    "card.md": _Form(
        "card", "text/markdown", "The robustness card of the model under evaluation, in Markdown."
    ),
    "samples.parquet": _Form(
        "samples", "application/vnd.apache.parquet", "What became of every sample, as a table."
    ),
    "samples.csv": _Form("csv", "text/csv; charset=utf-8", "The same table as csv."),
}


def routes(store: JobStore, settings: Settings, prefix: str) -> list[BaseRoute]:
    """The routes of finished evaluations, below the address of one with `{id}`."""
    evidence = _Evidence(store=store, settings=settings)
    router = APIRouter(dependencies=access("evaluate"))
    for name, form in _FORMS.items():
        endpoint = evidence.form(name, form)
        options: dict[str, Any] = {"description": form.what, "response_class": Response}
        options |= file(form.media_type, *_ERRORS)
        if form.link == "report":
            options |= {"response_model": Report, "response_class": JSONResponse}
            options["responses"] = failures(*_ERRORS)
        router.add_api_route(f"{prefix}/{name}", endpoint, **options)
    sample, options = f"{prefix}/samples/{{index}}", file("image/png", *_ERRORS)
    router.add_api_route(
        f"{sample}/{{kind}}.png", evidence.picture, response_class=Response, **options
    )
    options = {"response_model": TextSample, "responses": failures(*_ERRORS)}
    router.add_api_route(f"{sample}.json", evidence.text, **options)
    return router.routes


def links(job: Job, address: str) -> dict[str, str | None]:
    """Where the forms of an evaluation's report are; None for each before it has succeeded."""
    done = job.status == "succeeded"
    return {form.link: f"{address}/{name}" if done else None for name, form in _FORMS.items()}


async def find_job(store: JobStore, request: Request, job_id: str) -> Job:
    """An evaluation, if the sender of a request may see it.

    Raises:
        ApiError: 404 unknown_evaluation, the same for one of somebody else; 410
            evaluation_deleted.
    """
    job = await to_thread.run_sync(store.get, job_id)
    sees = caller_of(request).sees
    if job is None or sees not in (None, job.owner):
        raise ApiError(404, "unknown_evaluation", "There is no evaluation with this id.")
    if job.deleted is not None:
        raise ApiError(410, "evaluation_deleted", "This evaluation was deleted.")
    return job


def _change(
    attack: str | None = None, eps: str | None = None, model: str | None = None
) -> dict[str, Any]:
    return {"attack": attack, "eps": eps, "model": model}


_Change = Annotated[dict[str, Any], Depends(_change)]
"""Which change of a sample is asked for; the worst one where nothing is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Evidence:
    store: JobStore
    settings: Settings

    def form(self, name: str, form: _Form) -> Callable[..., Any]:
        """The endpoint of one form of the report."""

        async def endpoint(request: Request, id: str) -> Response:
            """One form of the report."""
            job = await self._finished(request, id)
            return await self._send(self._report(job) / name, form, f"assay-{_named(job)}-{name}")

        return endpoint

    async def _send(self, path: Path, form: _Form, filename: str) -> Response:
        if not await anyio.Path(path).is_file():
            raise ApiError(404, "no_report", "The report's file is no longer there.")
        policy = {"content-security-policy": _PAGE_POLICY} if form.shown else {}
        return FileResponse(
            path,
            media_type=form.media_type,
            filename=filename,
            content_disposition_type="inline" if form.shown else "attachment",
            headers=_PRIVATE | policy,
        )

    async def picture(
        self, request: Request, id: str, index: str, kind: str, change: _Change
    ) -> Response:
        """A sample of an evaluation of images: clean, adversarial, or their difference."""
        find = partial(lookup.picture, **change | {"kind": kind})
        content = await self._sample(request, id, index, find)
        return Response(content, media_type="image/png", headers=_PRIVATE)

    async def text(self, request: Request, id: str, index: str, change: _Change) -> Response:
        """A sample of an evaluation of texts, before and after an attack."""
        find = partial(lookup.changed_text, **change)
        return JSONResponse(await self._sample(request, id, index, find), headers=_PRIVATE)

    async def _sample(
        self, request: Request, id: str, index: str, find: Callable[[Path, int], Any]
    ) -> Any:
        """What a function of `robustness.report.lookup` finds in a report."""
        folder = self._report(await self._finished(request, id))
        return await to_thread.run_sync(_look_up, find, folder, index)

    async def _finished(self, request: Request, job_id: str) -> Job:
        job = await find_job(self.store, request, job_id)
        if job.active:
            message = f"The evaluation is {job.status}; its report comes when it has succeeded."
            raise ApiError(409, "evaluation_not_finished", message)
        if job.status != "succeeded":
            raise ApiError(404, "no_report", f"The evaluation has {job.status} without a report.")
        return job

    def _report(self, job: Job) -> Path:
        return evaluations_folder(self.settings.state) / job.id / REPORT


def _named(job: Job) -> str:
    """Model and evaluation as part of a file's name, so that no download replaces another."""
    model = re.sub(r"[^A-Za-z0-9._-]+", "-", job.models[0]["name"])
    return f"{model[:60]}-{job.id[:8]}"


def _look_up(find: Callable[[Path, int], Any], folder: Path, index: str) -> Any:
    try:
        if not re.fullmatch(r"[0-9]{1,9}", index):
            raise lookup.NoSuchSample(f"there is no sample {index[:20]!r}")
        return find(folder, int(index))
    except lookup.NoSuchSample as error:
        message = str(error)
        message = message[0].upper() + message[1:] + "."
        raise ApiError(404, "no_such_sample", message) from error
