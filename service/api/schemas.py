"""What the routes of evaluations answer, for the OpenAPI document; a test compares both."""

from typing import Annotated, Any

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from robustness.attacks.base import Access, Norm, Option, Role
from robustness.kinds import Answer, InputKind
from robustness.report.schema import Summary
from robustness.spec import EvaluationSpec
from service.http.openapi import DescribedBy
from service.jobs.table import Priority, Status


class Cost(TypedDict):
    """Model evaluations at most, and seconds where they can be told.

    Of a remote model also the inputs that it is asked about, at most, and what these cost where the
    operator gave a price.
    """

    model_evaluations: int
    queries: int | None
    amount: float | None
    seconds: float | None


class Accepted(TypedDict):
    """An evaluation that was accepted; `queue_position` is 1 for the one that comes next."""

    id: str
    status: Status
    queue_position: int | None
    cost: Cost


class EvaluatedModel(TypedDict):
    """A model of an evaluation, the attacked one first."""

    name: str
    version: str
    digest: str


class Progress(TypedDict):
    """Model evaluations done and to do, what is being done, and seconds that are left."""

    done: int
    total: int
    stage: str
    eta_s: float | None


class Failure(TypedDict):
    """Why an evaluation failed."""

    code: str
    message: str


class Evaluation(TypedDict):
    """What the list shows of an evaluation; a link is null until there is something behind it.

    One that is `continuable` was cancelled, or failed at its endpoint, and has kept what it had.
    """

    id: str
    status: Status
    owner: str
    priority: Priority
    queue_position: int | None
    model: str
    compare_with: str | None
    models: list[EvaluatedModel]
    spec: Annotated[dict[str, Any], DescribedBy(EvaluationSpec)]
    samples: int
    created: str | None
    started: str | None
    finished: str | None
    cancel_requested: bool
    continuable: bool
    progress: Progress
    error: Failure | None
    links: dict[str, str | None]


class WholeEvaluation(Evaluation):
    """An evaluation with its result, which is the `summary` of its report."""

    result: Annotated[dict[str, Any], DescribedBy(Summary)] | None


class EvaluationPage(TypedDict):
    """A part of the list, the newest first; `next_cursor` leads to older ones."""

    evaluations: list[Evaluation]
    next_cursor: str | None


class AttackDescription(TypedDict):
    """An attack: what it is called, what it needs, and what it can be told."""

    name: str
    title: str
    what: str
    paper: str
    references: list[str]
    input: InputKind
    access: Access
    role: Role
    budget: str
    norms: list[Norm]
    min_classes: int
    answers: list[Answer]
    options: list[Option]


class TextSample(TypedDict):
    """A text before and after an attack, each with the flags of the report, word by word.

    `adversarial` is null where the attack `none`, the unchanged text, was asked for.
    """

    index: int
    name: str
    label: int | None
    model: str
    clean: dict[str, Any]
    adversarial: dict[str, Any] | None
    changes: list[tuple[str, str]]
