"""Does any request make the service answer with a 5xx, or as its document does not say?

Schemathesis makes requests from the published OpenAPI document of a running server, half of them as
the document says and half not, for every operation in turn. Where a path names an evaluation or a
model, half of the requests name one that exists. Each answer must have a documented status, type of
content and, for JSON, schema, and never a status of 500 or more.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, strategies
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Err
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from benchmarks.support.rows import Row, figure
from benchmarks.support.server import serving, start_evaluation, wait_for
from core.progress import Bar

_CHECKS = [
    not_a_server_error, status_code_conformance,
    content_type_conformance, response_schema_conformance,
]  # fmt: skip
_SETTINGS = hypothesis.settings(
    deadline=None,
    database=None,
    phases=[Phase.generate],
    print_blob=False,
    # A document may ask for what takes long to make up.
    suppress_health_check=(
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
        HealthCheck.large_base_example,
    ),
)
_TIMEOUT_S = 40
_SPEC = {"attacks": [{"name": "fgsm", "eps": ["4/255"]}]}
_VICTIM = "id to delete"


@dataclass(slots=True)
class Found:
    """What the requests were answered.

    Attributes:
        statuses: how often each status was answered, by operation.
        failures: what was wrong, by operation and kind, and a request that shows it.
    """

    statuses: dict[str, Counter[int]] = field(default_factory=dict)
    failures: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def cases(self) -> int:
        """How many requests were answered."""
        return sum(counter.total() for counter in self.statuses.values())

    @property
    def server_errors(self) -> int:
        """How many answers had a status of 500 or more."""
        by_status: Counter[int] = sum(self.statuses.values(), Counter())
        return sum(count for status, count in by_status.items() if status >= 500)


def run(*, cases: int = 10_000, seed: int = 0) -> Iterable[Row]:
    """Try a server with the demo models.

    Args:
        cases: requests, at least.
        seed: of the requests.
    """
    with serving() as (_, address):
        return rows(fuzz(address, cases=cases, seed=seed))


def fuzz(address: str, *, cases: int, seed: int = 0) -> Found:
    """Send requests to a running server.

    Args:
        address: of the server, such as "http://127.0.0.1:4711".
        cases: requests, at least.
        seed: of the requests.
    """
    known = _known(address)
    schema = schemathesis.openapi.from_url(f"{address}/docs.json")
    operations: list[Any] = []
    for result in schema.get_all_operations():
        if isinstance(result, Err):
            raise result.err()
        operations.append(result.ok())
    pairs = [(operation, GenerationMode.POSITIVE) for operation in operations]
    # Any text may stand in a path: what has nothing else cannot be asked in a wrong way.
    ruled = [operation for operation in operations if operation.body or operation.query]
    pairs += [(operation, GenerationMode.NEGATIVE) for operation in ruled]
    found, session = Found(), requests.Session()
    with Bar(total=cases, desc="fuzz", unit="request") as bar:
        while found.cases < cases:
            seed += 1
            count = (cases - found.cases) // len(pairs) + 1
            for operation, mode in pairs:
                _try(operation, mode, count, known, session, found, seed)
                bar.update(min(found.cases, cases) - bar.n)
    return found


def rows(found: Found) -> list[Row]:
    """How many answers were 5xx, and how many kinds of answers the document does not describe."""
    case = f"{found.cases} requests to {len(found.statuses)} operations"
    shown = "; ".join(f"{operation} {kind}" for operation, kind in sorted(found.failures))
    wrong, bad, cases = len(found.failures), found.server_errors, found.cases
    kinds = f"kinds of undocumented answers{': ' * bool(wrong)}{shown}"
    return [
        figure(f"{case}, answers of 500 or more", bad, "answers", target=0, samples=cases),
        figure(f"{case}, {kinds}", wrong, "kinds", target=0, samples=cases),
    ]


def _try(
    operation: Any,
    mode: GenerationMode,
    count: int,
    known: Mapping[str, Sequence[str]],
    session: requests.Session,
    found: Found,
    seed: int,
) -> None:
    """Send some requests of one operation; an answer that is wrong is noted, not raised."""

    def send(case: Any, parameters: dict[str, str | None]) -> None:
        """None leaves a parameter of the path as it was made up."""
        case.path_parameters.update({k: v for k, v in parameters.items() if v is not None})
        _score(operation.label, case, session, found)

    names = {name: values for name, values in known.items() if f"{{{name}}}" in operation.path}
    # Unloading a model that exists would leave the rest of the run without it.
    names = {} if "unload" in operation.path else names
    if operation.method == "delete":
        names = {"id": known[_VICTIM]}
    parameters = strategies.fixed_dictionaries(
        {name: strategies.none() | strategies.sampled_from(v) for name, v in names.items()}
    )
    cases = operation.as_strategy(generation_mode=mode)
    given = hypothesis.given(case=cases, parameters=parameters)(send)
    settings = hypothesis.settings(_SETTINGS, max_examples=count)
    with suppress(Unsatisfiable):
        hypothesis.seed(seed)(settings(given))()


def _score(label: str, case: Any, session: requests.Session, found: Found) -> None:
    try:
        response = case.call(session=session, timeout=_TIMEOUT_S)
    except requests.RequestException as error:
        found.failures.setdefault((label, type(error).__name__), case.as_curl_command()[:2000])
        found.statuses.setdefault(label, Counter())[599] += 1
        return
    found.statuses.setdefault(label, Counter())[response.status_code] += 1
    try:
        case.validate_response(response, checks=_CHECKS)
    except FailureGroup as group:
        for failure in group.exceptions:
            kind = f"{response.status_code} {type(failure).__name__}"
            found.failures.setdefault((label, kind), f"{failure}\n{case.as_curl_command()[:2000]}")


def _known(address: str) -> dict[str, Sequence[str]]:
    """Names of models and evaluations to put into paths; one of these is there to be deleted."""
    models = httpx.get(f"{address}/v1/models").raise_for_status().json()
    known: dict[str, Sequence[str]] = {
        **{key: [model[key] for model in models] for key in ("name", "version")},
        "index": ["0", "1"],
        "kind": ["clean", "adversarial", "perturbation"],
    }
    for name in (_VICTIM, "id"):
        location = start_evaluation(address, _SPEC, samples=2)
        if name == _VICTIM:
            httpx.delete(location).raise_for_status()
        wait_for(location, lambda job: job["status"] not in ("queued", "running"))
        known[name] = [location.rpartition("/")[2]]
    return known
