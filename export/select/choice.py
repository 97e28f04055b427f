"""Which runtime was the fastest for an artifact on this machine, kept between starts."""

import hashlib
import logging
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from core.files import write_whole
from runtimes.artifact import Artifact
from runtimes.base import Mode
from runtimes.machine import fingerprint
from runtimes.registry import ENGINES

logger = logging.getLogger(__name__)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Question(_Strict):
    """What was asked, and everything that the answer depends on.

    Attributes:
        artifact: digest of the artifact.
        name: the runtime that was asked for, or "auto".
        mode: how precise it must be.
        threads: threads of one prediction.
        machine: processor, devices and versions of the engines.
        rule: raised when measuring or judging changes.
    """

    artifact: str
    name: str
    mode: Mode
    threads: int
    machine: dict[str, str]
    rule: int = 3


class Choice(_Strict):
    """The answer.

    Attributes:
        question: what it answers.
        runtime: name of the engine.
        precision: its arithmetic.
        milliseconds: of one prediction, at each batch size, by engine and precision.
        refused: why faster ones do not serve, and others were not even timed.
    """

    question: Question
    runtime: str
    precision: str
    milliseconds: dict[str, list[float]]
    refused: list[str]


def question(artifact: Artifact, *, name: str, mode: Mode, threads: int) -> Question:
    """The question to which a choice would be the answer on this machine."""
    return Question(
        artifact=artifact.digest, name=name, mode=mode, threads=threads, machine=fingerprint()
    )


def recall(asked: Question, folder: Path) -> Choice | None:
    """The kept answer; None where there is none, or one that is damaged or of another machine."""
    try:
        choice = Choice.model_validate_json(_file(asked, folder).read_bytes())
    except (OSError, ValidationError):
        return None
    measured = f"{choice.runtime} {choice.precision}" in choice.milliseconds
    there = choice.runtime in ENGINES and ENGINES[choice.runtime].missing() is None
    return choice if choice.question == asked and measured and there else None


def remember(choice: Choice, folder: Path) -> None:
    """Keep an answer; where nothing can be written the next start measures again."""
    path = _file(choice.question, folder)
    try:
        write_whole(path, choice.model_dump_json(indent=2).encode())
    except OSError as error:
        logger.warning("The choice of a runtime cannot be kept: %s", error.strerror)


def _file(asked: Question, folder: Path) -> Path:
    key = hashlib.sha256(asked.model_dump_json().encode()).hexdigest()
    return folder / f"{asked.artifact[:16]}-{key[:16]}.json"
