"""The routes of evaluations in this process, and what tests send to them."""

import asyncio
import io
import json
import re
import zipfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from data.images import to_png
from runtimes.artifact import Artifact
from runtimes.tasks import IMAGES, Task
from service.api.evaluations import routes
from service.decoding.pool import Decoders
from service.http.app import create_app
from service.http.keys import ANYONE
from service.http.refusal import ApiError
from service.jobs.queue import JobStore
from service.jobs.table import Job
from service.jobs.uploads import evaluations_folder
from service.jobs.worker import Evaluator
from service.settings import Settings
from tests.service.conftest import wait_until
from tests.service.tiny_artifact import LABELS, noise

URL = "/v1/evaluations"
FGSM = {"attacks": [{"name": "fgsm", "eps": ["8/255"]}]}
PNG = to_png(noise(1)[0][None] / 255)
Files = list[tuple[str, tuple[str, bytes]]]


class Front:
    """The routes under the service's error shape, called in process."""

    def __init__(self, state: Path, artifacts: dict[str, Artifact], **settings: Any) -> None:
        roots = sorted({artifact.folder.parent for artifact in artifacts.values()})
        self.settings = Settings(state=state, models=roots, **settings)
        self.store = JobStore(self.settings.database_url)

        def find_model(name: str | None, task: Task) -> Artifact:
            name = name or ("fashion-elliptical" if task == IMAGES else "tiny-transject")
            if name not in artifacts:
                raise ApiError(404, "unknown_model", f"There is no model {name!r}.")
            if (own := artifacts[name].task) != task:
                raise ApiError(422, "wrong_task", f"The model {name!r} cannot.", {"task": own})
            return artifacts[name]

        self.decoders = Decoders(self.settings)
        self.app = create_app(routes(self.store, self.settings, find_model, self.decoders))
        self.caller = ANYONE
        self._transport = httpx.ASGITransport(app=self.as_caller)

    def close(self) -> None:
        self.decoders.close()
        self.store.close()

    async def as_caller(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What the service's gate does when it knows the key."""
        scope["state"] = {"caller": self.caller}
        await self.app(scope, receive, send)

    def talk(self, conversation: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> Any:
        async def run() -> Any:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://assay") as c:
                return await conversation(c)

        return asyncio.run(run())

    def request(self, method: str, url: str, **options: Any) -> httpx.Response:
        return self.talk(lambda client: client.request(method, url, **options))

    def post(
        self, files: Files | None = None, *, key: str | None = None, **fields: Any
    ) -> httpx.Response:
        fields = {"spec": json.dumps(FGSM)} | fields
        parts: list[Any] = [
            (name, (None, value)) for name, value in fields.items() if value is not None
        ]
        parts += [("images", ("a.png", PNG))] if files is None else files
        headers = {"Idempotency-Key": key} if key else {}
        return self.request("POST", URL, files=parts, headers=headers)

    def folders(self) -> list[str]:
        folder = evaluations_folder(self.settings.state)
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []

    def submit(self, *attacks: dict[str, Any], count: int = 40, **spec: Any) -> str:
        """The identifier of an evaluation of labeled images."""
        labels = json.dumps([LABELS[index % 3] for index in range(count)])
        spec = {"attacks": attacks} | spec
        response = self.post(pictures(count), spec=json.dumps(spec), labels=labels)
        assert response.status_code == 202, response.text
        return response.json()["id"]

    def job(self, job_id: str) -> Job:
        job = self.store.get(job_id)
        assert job is not None
        return job

    def folder(self, job_id: str) -> Path:
        return evaluations_folder(self.settings.state) / job_id

    @contextmanager
    def evaluator(self, **limits: Any) -> Iterator[Evaluator]:
        settings = self.settings.model_copy(update=limits)
        evaluator = Evaluator(self.store, settings, lost_after=3.0)
        evaluator.start()
        try:
            yield evaluator
        finally:
            evaluator.stop()
            assert not evaluator.alive()

    def run_all(self, **limits: Any) -> dict[str, Job]:
        """Every evaluation, by identifier, when all have ended."""
        with self.evaluator(**limits) as evaluator:
            assert wait_until(lambda: all(not j.active for j in self.store.page()[0]), seconds=400)
            assert evaluator.alive()
        return {job.id: job for job in self.store.page()[0]}


def pictures(count: int, field: str = "images") -> Files:
    return [
        (field, (f"{index}.png", to_png(pixels[None] / 255)))
        for index, pixels in enumerate(noise(count))
    ]


def zipped(members: dict[str, bytes], **attributes: Any) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            archive.writestr(info, content)
    return stream.getvalue()


def archive(content: bytes) -> Files:
    return [("archive", ("some.bin", content))]


def check_error(response: Any, status: int, code: str, message: str = "") -> Any:
    """The details of a refusal, which is in the shape of all errors and tells no path."""
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code), error
    assert set(error) == {"code", "message", "details"}
    assert re.search(message, error["message"]), error["message"]
    assert "/tmp" not in response.text and "Traceback" not in response.text
    return error["details"]
