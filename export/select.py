"""Select the runtime of an artifact: benchmark the candidates once, cache the choice.

The benchmark runs in a process of its own, `python -m export.benchmark`: a runtime that crashes, or
that brings hundreds of megabytes, does so there and not in the process that serves. That process
may write nothing but what is built of this artifact.
"""

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from pydantic import BaseModel, ConfigDict, ValidationError

from core.files import sha256, write_whole
from export.child import REFUSED, run_child
from runtimes.artifact import Artifact
from runtimes.base import Mode, Runtime, RuntimeUnavailable
from runtimes.gate import ParityFailure
from runtimes.machine import fingerprint
from runtimes.quantized import built_folder, has_graph
from runtimes.registry import RUNTIMES, candidates, installed, open_runtime, require_runtime
from runtimes.threads import available_cores

logger = logging.getLogger(__name__)

_TIMEOUT_S, _TENSORRT_TIMEOUT_S = 300, 1800  # of an artifact; TensorRT builds for minutes


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class CacheKey(_Strict):
    """Everything that a selection depends on: digest of the artifact, what was asked for, machine.

    `rule` is raised when the benchmark or the gate changes.
    """

    artifact: str
    name: str
    mode: Mode
    threads: int
    machine: dict[str, str]
    rule: int = 5


class Selection(_Strict):
    """The runtime of an artifact.

    Attributes:
        milliseconds: of one prediction, at each batch size, by runtime and precision.
        refused: why faster ones do not serve, and others were not timed.
    """

    key: CacheKey
    runtime: str
    precision: str
    milliseconds: dict[str, list[float]]
    refused: list[str]


def open_selected(
    artifact: Artifact,
    *,
    name: str = "auto",
    mode: Mode = "exact",
    threads: int | None = None,
    cache: Path | None = None,
) -> Runtime:
    """Open an artifact on the runtime that is selected for it; see `open_runtime`.

    Args:
        artifact: a verified artifact.
        name: of a runtime; "auto" is the fastest that passes the artifact's parity gate here.
        mode: "exact" is the artifact's own precision; "fast" the fastest that passes the gate.
        threads: threads of one prediction; None takes the cores that this process may use.
        cache: folder of earlier selections, and of what runtimes build; None measures every time.

    Raises:
        ValueError: unknown runtime or mode, or fewer than one thread.
        RuntimeUnavailable: no such runtime is installed, or none can run this artifact here.
        ParityFailure: it computes something else than the artifact's model.
        ArtifactError: see `open_runtime`.
    """
    if mode not in get_args(Mode):
        raise ValueError(f"mode must be exact or fast, got {mode!r}")
    if name != "auto":
        require_runtime(name)
        own = artifact.manifest.precision
        if set(RUNTIMES[name].precisions(artifact.manifest, mode)) <= {own}:
            return open_runtime(artifact, name=name, threads=threads, cache=cache)
    cores = threads or available_cores()

    def opened() -> Runtime:
        """The runtime of the selection, which is measured where none is cached."""
        [chosen] = select_runtimes([artifact], name=name, mode=mode, threads=cores, cache=cache)
        runtime, precision = chosen.runtime, chosen.precision
        return open_runtime(artifact, name=runtime, precision=precision, threads=cores, cache=cache)

    try:
        return opened()
    except ParityFailure:
        if cache is None:
            raise
        # It passed the gate when it was selected: something changed that the key does not tell.
        key = cache_key(artifact, name=name, mode=mode, threads=cores)
        _file(key, cache).unlink(missing_ok=True)
        return opened()


def select_runtimes(
    artifacts: Sequence[Artifact], *, name: str, mode: Mode, threads: int, cache: Path | None
) -> list[Selection]:
    """The runtime of each artifact: from the cache, or measured in a child process.

    Args:
        artifacts: verified artifacts.
        name: of a runtime, or "auto".
        mode: how precise it must be.
        threads: threads of one prediction.
        cache: folder of earlier selections, and of what runtimes build; None measures every time.

    Raises:
        RuntimeUnavailable: no runtime can serve one of them.
    """
    asked = {
        each.digest: cache_key(each, name=name, mode=mode, threads=threads) for each in artifacts
    }
    found = {each.digest: _load_usable(each, asked[each.digest], cache) for each in artifacts}
    return [found[each.digest] or _measured(each, asked[each.digest], cache) for each in artifacts]


def cached_selection(
    artifact: Artifact, *, name: str, mode: Mode, threads: int, cache: Path
) -> Selection | None:
    """What an earlier `select_runtimes` with the same arguments selected; None before it."""
    key = cache_key(artifact, name=name, mode=mode, threads=threads)
    return _load_usable(artifact, key, cache)


def cache_key(artifact: Artifact, *, name: str, mode: Mode, threads: int) -> CacheKey:
    """Under which a selection on this machine is cached."""
    return CacheKey(
        artifact=artifact.digest, name=name, mode=mode, threads=threads, machine=fingerprint()
    )


def load_selection(key: CacheKey, folder: Path) -> Selection | None:
    """The cached selection; None where there is none, or one that is damaged or of another key."""
    try:
        selection = Selection.model_validate_json(_file(key, folder).read_bytes())
    except (OSError, ValidationError):
        return None
    measured = f"{selection.runtime} {selection.precision}" in selection.milliseconds
    usable = selection.runtime in installed()
    return selection if selection.key == key and measured and usable else None


def store_selection(selection: Selection, folder: Path) -> None:
    """Cache a selection; where nothing can be written the next start measures again."""
    try:
        write_whole(_file(selection.key, folder), selection.model_dump_json(indent=2).encode())
    except OSError as error:
        logger.warning("The selected runtime cannot be cached: %s", error.strerror)


def _file(key: CacheKey, folder: Path) -> Path:
    digest = sha256(key.model_dump_json().encode())
    return folder / f"{key.artifact[:16]}-{digest[:16]}.json"


def _load_usable(artifact: Artifact, key: CacheKey, cache: Path | None) -> Selection | None:
    """The cached selection, unless the graph that it needs was deleted or damaged."""
    selection = load_selection(key, cache) if cache else None
    return selection if selection and has_graph(artifact, selection.precision, cache) else None


def _measured(artifact: Artifact, key: CacheKey, cache: Path | None) -> Selection:
    """Let a child benchmark an artifact; what it selected is stored in `cache`."""
    with tempfile.TemporaryDirectory() as folder:
        problem = _run_benchmark(artifact, key, Path(folder), cache)
        selection = load_selection(key, Path(folder))
    if selection is None:
        return _fallback(artifact, key, problem)
    times = ", ".join(
        f"{name} {' / '.join(map(str, ms))} ms" for name, ms in selection.milliseconds.items()
    )
    chosen = f"{selection.runtime} {selection.precision}"
    logger.info("%s is served by %s (%s)", artifact.name, chosen, times)
    for reason in selection.refused:
        logger.info("%s: %s", artifact.name, reason)
    if cache is not None:
        store_selection(selection, cache)
    return selection


def _run_benchmark(artifact: Artifact, key: CacheKey, answers: Path, cache: Path | None) -> str:
    """Run the benchmark in a child process; returns why it ended early, if it did."""
    arguments = ["--name", key.name, "--mode", key.mode, "--threads", str(key.threads)]
    arguments += ["--answers", str(answers), *(["--cache", str(cache)] if cache else [])]
    slow = "onnx-tensorrt" in candidates(key.name)
    child = run_child(
        "export.benchmark",
        [*arguments, str(artifact.folder.absolute())],
        own=answers,
        writable=[built_folder(artifact, cache)] if cache else [],
        timeout=_TENSORRT_TIMEOUT_S if slow else _TIMEOUT_S,
    )
    if child.status == REFUSED:
        raise RuntimeUnavailable(child.reason)
    if child.status:
        logger.warning("The benchmark of runtimes failed:\n%s", "\n".join(child.errors))
    return child.reason


def _fallback(artifact: Artifact, key: CacheKey, problem: str) -> Selection:
    """What serves when the benchmark failed, for this start only."""
    precisions = RUNTIMES["onnx-cpu"].precisions(artifact.manifest, "exact")
    if key.name != "auto" or not precisions:
        raise RuntimeUnavailable(f"runtime {key.name} cannot serve {artifact.name}: {problem}")
    logger.warning("%s is served by onnx-cpu: %s", artifact.name, problem)
    return Selection(
        key=key,
        runtime="onnx-cpu",
        precision=precisions[0],
        milliseconds={},
        refused=[problem],
    )
