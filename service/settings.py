"""The settings of the service: environment variables ``ASSAY_*`` and their defaults."""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import quote

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from data.images import FORMATS

LogFormat = Literal["auto", "text", "json"]
Count = Annotated[int, Field(gt=0)]
Amount = Annotated[float, Field(gt=0)]
Processes = Annotated[int, Field(gt=0, le=256)]
# Some engines make as many as they are told to, and the host stands still.
Threads = Annotated[int, Field(gt=0, le=1024)]
ROOT = Path(__file__).resolve().parents[1]  # the project, or its copy inside a built bento
_PATH_SETTINGS = (
    "ASSAY_STATE",
    "ASSAY_RUN",
    "ASSAY_MODELS",
    "ASSAY_DATA",
    "ASSAY_SAMPLES",
    "ASSAY_DATABASE_FILE",
    "ASSAY_API_KEYS_FILE",
    "ASSAY_TARGETS",
)
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
_HOST = re.compile(r"\*|(\*\.)?[\w-]+(\.[\w-]+)*|\[[0-9a-f:.]+\]", re.ASCII | re.IGNORECASE)
# The table's headings, each before the setting named here.
_GROUPS = {
    "models": "What is served, and where it is kept",
    "role": "Processes",
    "api_keys": "Access",
    "runtime": "Runtimes",
    "header_timeout_s": "Requests",
    "reload_s": "Predictions",
    "queue_length": "Evaluations",
}


class Settings(BaseSettings):
    """What an operator may set; every path is absolute after reading.

    The defaults of ``models`` and ``samples`` lie beside the code, so that a built bento finds
    them from any directory; ``state`` and everything given by the user are relative to the
    current directory.
    """

    # A value in an error may be a password or a key.
    model_config = SettingsConfigDict(
        env_prefix="ASSAY_", frozen=True, env_ignore_empty=True, hide_input_in_errors=True
    )

    models: Annotated[list[Path], NoDecode] = Field(
        default=[ROOT / "artifacts"],
        min_length=1,
        description="artifact folders, or folders of them, separated like PATH",
    )
    default_image: str = Field(
        default="fashion-elliptical", description="model of images used when none is named"
    )
    default_text: str = Field(
        default="imdb-transject", description="model of texts used when none is named"
    )
    default_segmenter: str = Field(
        default="scenes-segmenter", description="segmenter used when none is named"
    )
    default_language: str = Field(
        default="imdb-characters", description="language model used when none is named"
    )
    targets: Path | None = Field(
        default=None,
        description="YAML file of remote endpoints by name, which evaluations may ask; without one,"
        " none is asked",
    )
    state: Path = Field(
        default=Path("state"), description="jobs and uploads, all that outlives a run"
    )
    run: Path | None = Field(
        default=None,
        description="private folder of one run (sockets, counters), removed at exit; without one, a"
        " new folder in the temporary directory",
    )
    database: SecretStr = Field(
        default=SecretStr(""),
        description="PostgreSQL URL of the table of evaluations; without one, SQLite in the state",
    )
    database_file: Path | None = Field(
        default=None, description="file whose content is `ASSAY_DATABASE`"
    )
    samples: Path = Field(
        default=ROOT / "artifacts" / "samples", description="images the page offers"
    )
    data: Path | None = Field(default=None, description="folder of known data sets")
    role: Literal["all", "predict", "evaluate"] = Field(
        default="all",
        description="`predict` leaves evaluations to other hosts, `evaluate` runs nothing else",
    )
    workers: Processes = Field(default=1, description="processes that answer requests")
    evaluators: Processes = Field(
        default=1, description="processes that run evaluations, one each at a time"
    )
    drain_s: float = Field(
        default=1,
        ge=0,
        le=300,
        description="seconds in which `/readyz` says that the server stops, before it does",
    )
    log_format: LogFormat = Field(
        default="auto", description="`text`, `json`, or `auto`: text on a terminal only"
    )

    api_keys: SecretStr = Field(
        default=SecretStr(""),
        description="API keys: a JSON list, or the path of a file with one; without them everybody"
        " may do everything",
    )
    api_keys_file: Path | None = Field(
        default=None, description="file whose content is `ASSAY_API_KEYS`"
    )
    hosts: Annotated[list[str] | None, NoDecode] = Field(
        default=None,
        description="names under which the service is reached, separated by commas, such as"
        " `assay.example.com,*.internal,[::1]`; `*` is any; without a list, any where keys are in"
        " use, otherwise `localhost,127.0.0.1,[::1]`",
    )
    open_metrics: bool = Field(
        default=False, description="whether `/metrics` needs no key where keys are in use"
    )

    runtime: Literal[
        "auto", "onnx-cpu", "onnx-cuda", "onnx-tensorrt", "openvino", "torchscript"
    ] = Field(
        default="auto",
        description="runtime; `auto` is the fastest that gives the model's answers, never"
        " `torchscript`, which runs code of the artifact",
    )
    precision: Literal["exact", "fast"] = Field(
        default="exact",
        description="`exact` is the artifact's own; `fast` any that agrees with it to 99.5 %",
    )

    header_timeout_s: Amount = Field(default=10, description="time for a request's headers")
    max_body_mb: Amount = Field(default=64, description="size of a request's body in MB")
    upload_timeout_s: Amount = Field(default=300, description="time for a request's body")
    body_stall_s: Amount = Field(
        default=15, description="how long a request's body may lag behind 1 kB/s"
    )
    upload_bodies_mb: Amount = Field(
        default=512, description="bodies of evaluations in memory at a time, in MB"
    )
    max_pixels: Count = Field(default=50_000_000, description="pixels of an image before decoding")
    predict_pixels: Count = Field(
        default=64_000_000,
        description="pixels of all images of one prediction, or of one that `ASSAY_MAX_PIXELS`"
        " allows if that is more",
    )
    image_formats: Annotated[tuple[str, ...], NoDecode] = Field(
        default=("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF"),
        min_length=1,
        description="image formats that are taken, separated by commas; there are also `PPM`,"
        " `AVIF` and `JPEG2000`",
    )
    decode_cpu_s: Amount = Field(
        default=2,
        description="processor seconds in which an archive must be read, an image of"
        " `ASSAY_MAX_PIXELS` be decoded, and all images of one prediction be read and decoded;"
        " smaller ones get their share, an eighth at least",
    )
    max_images_classify: Count = Field(default=64, description="files in one /classify request")
    max_texts_classify: Count = Field(default=64, description="texts in one /classify_text request")
    reload_s: float = Field(
        default=5, ge=0, description="pause between looks for new and removed models; 0: no look"
    )
    batch_max: Count = Field(default=32, description="inputs the runtime sees at once")
    predict_queue: Count = Field(default=256, description="inputs waiting for one model")
    predict_wait_s: Amount = Field(
        default=3, description="expected wait above which a prediction is refused"
    )
    predict_timeout_s: Amount = Field(
        default=30, description="time from a prediction's arrival to its answer"
    )
    predict_bodies_mb: Amount = Field(
        default=512, description="bodies of predictions in memory at a time, in MB"
    )
    max_json_mb: Amount = Field(
        default=8, description="JSON of a V2 request in MB; larger tensors come as binary"
    )
    max_text_chars: Count = Field(
        default=100_000, description="characters of one text, in predictions and evaluations"
    )
    predict_threads: Threads | None = Field(default=None, description="threads of a runtime")

    queue_length: Count = Field(
        default=32, description="evaluations waiting, and as many again of priority `high`"
    )
    stored_mb: Amount = Field(
        default=10_000, description="uploads and results that one caller's evaluations keep, in MB"
    )
    free_mb: float = Field(
        default=256, ge=0, description="free disk space in MB, below which nothing is accepted"
    )
    evaluation_max_samples: Count = Field(
        default=2000, description="images or texts of one evaluation"
    )
    evaluation_max_steps: Count = Field(default=1000, description="steps of one attack")
    evaluation_max_eps: Count = Field(
        default=16, description="radii, sigmas, rates or numbers of edits of one attack"
    )
    evaluation_max_queries: Count = Field(
        default=20_000, description="queries of one attack on one input"
    )
    evaluation_max_directions: Count = Field(
        default=2048, description="random directions in one step of spsa"
    )
    evaluation_max_attacks: Count = Field(default=16, description="attacks of one evaluation")
    evaluation_max_cost: Count = Field(
        default=100_000_000, description="model evaluations of one evaluation"
    )
    archive_max_mb: Amount = Field(default=256, description="size of an uploaded archive, unpacked")
    evaluation_threads: Threads | None = Field(
        default=None,
        description="threads of an evaluation; without a number, its share of the cores that"
        " predictions leave, half of all where `ASSAY_PREDICT_THREADS` is not set",
    )
    evaluation_share: float = Field(
        default=0.15,
        ge=0.02,
        le=1,
        description="share of its time that an evaluation works while its server computes"
        " predictions; 1 never gives way",
    )
    evaluation_memory_mb: Amount | None = Field(
        default=None,
        description="resident memory at which an evaluation is ended; without a number, its share"
        " of half of the memory",
    )
    evaluation_max_hours: Amount = Field(
        default=24, description="time that an evaluation may run, all attempts together"
    )
    event_streams: Count = Field(
        default=100, description="clients of one process that follow evaluations or wait for them"
    )
    retention_hours: Amount = Field(default=168, description="age at which a result is deleted")

    @model_validator(mode="before")
    @classmethod
    def _take_files(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Have the files of secrets stand for their values."""
        for name in ("database", "api_keys"):
            path, variable = given.get(f"{name}_file"), f"ASSAY_{name.upper()}"
            if path and given.get(name):
                raise ValueError(f"{variable} and {variable}_FILE must not both be given")
            if path:
                given = given | {name: _read_secret(f"{variable}_FILE", path)}
        return given

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return [part for part in value.split(os.pathsep) if part]
        return value

    @field_validator("hosts", mode="before")
    @classmethod
    def _split_hosts(cls, value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @field_validator("hosts")
    @classmethod
    def _check_hosts(cls, value: list[str] | None) -> list[str] | None:
        for host in value or ():
            if not _HOST.fullmatch(host):
                raise ValueError(
                    "must list names, patterns like *.example.com or addresses, IPv6 in"
                    f" brackets, all without scheme and port; got {host!r}"
                )
        return value

    @field_validator("image_formats", mode="before")
    @classmethod
    def _formats(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        names = tuple(part.strip().upper() for part in value.split(",") if part.strip())
        if unknown := [name for name in names if name not in FORMATS]:
            known = ", ".join(FORMATS)
            raise ValueError(f"there is no format {unknown[0]!r}; known are {known}")
        return names

    @field_validator(
        *("models", "state", "run", "samples", "data"),
        *("database_file", "api_keys_file", "targets"),
    )
    @classmethod
    def _absolute(cls, value: list[Path] | Path | None) -> list[Path] | Path | None:
        if isinstance(value, list):
            return [path.expanduser().absolute() for path in value]
        return value and value.expanduser().absolute()

    @property
    def database_url(self) -> str:
        """The table of evaluations."""
        given = self.database.get_secret_value()
        return given or f"sqlite:///{quote(str(self.state / 'assay.sqlite3'))}"

    @property
    def known_hosts(self) -> list[str]:
        """Names and addresses under which the service is reached; ``*`` is any."""
        if self.hosts:
            return self.hosts
        return ["*"] if self.api_keys.get_secret_value().strip() else list(_LOCAL_HOSTS)

    @property
    def runtimes_folder(self) -> Path:
        """Which runtime was the fastest here, and what engines built."""
        return self.state / "runtimes"

    @property
    def max_body_bytes(self) -> int:
        """Size limit of a request's body in bytes."""
        return int(self.max_body_mb * 1_000_000)


def _read_secret(variable: str, path: str | Path) -> str:
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ValueError(f"{variable}={path} cannot be read: {reason}") from None
    if not text:
        raise ValueError(f"{variable}={path} must not be empty")
    return text


def absolute_paths(environ: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Path settings of ``environ``, relative ones taken from ``folder``.

    BentoML changes the current directory of its workers; these values are handed to them.
    """
    given = {name: environ[name] for name in _PATH_SETTINGS if environ.get(name)}
    given.setdefault("ASSAY_STATE", "state")
    keys = environ.get("ASSAY_API_KEYS", "").strip()
    if keys and keys[0] not in "[{":
        given["ASSAY_API_KEYS"] = keys
    return {
        name: os.pathsep.join(
            str(folder / Path(part).expanduser()) for part in value.split(os.pathsep) if part
        )
        for name, value in given.items()
    }


def table() -> str:
    """Every setting, its default and its meaning, as Markdown tables for the docs."""
    lines: list[str] = []
    for name, field in Settings.model_fields.items():
        if name in _GROUPS:
            title = f"**{_GROUPS[name]}**"
            lines += ["", title, "", "| variable | default | meaning |", "|---|---|---|"]
        lines.append(f"| `ASSAY_{name.upper()}` | {_shown(field.default)} | {field.description} |")
    return "\n".join(lines).strip()


def _shown(default: object) -> str:
    value = default[0] if isinstance(default, list) else default
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, Path) and value.is_absolute():
        value = value.relative_to(ROOT)
    return "" if value in (None, "") else f"`{value}`"


def process_count(variable: str) -> int:
    """A number of processes, which BentoML must know before settings are read and checked.

    Args:
        variable: such as ``ASSAY_WORKERS``; a value that is refused later counts as 1.
    """
    text = os.environ.get(variable, "")
    return int(text) if re.fullmatch(r"[1-9][0-9]{0,2}", text) else 1


def log_format() -> LogFormat:
    """`ASSAY_LOG_FORMAT`, by which also a wrong setting is told; a wrong value counts as `auto`."""
    text = os.environ.get("ASSAY_LOG_FORMAT", "")
    return next((known for known in get_args(LogFormat) if known == text), "auto")


@lru_cache
def get_settings() -> Settings:
    """The settings of this process, read once from the environment.

    Raises:
        ValueError: one sentence about every variable that breaks a rule.
    """
    try:
        return Settings()
    except ValidationError as error:
        broken = error.errors(include_url=False, include_input=False)
        raise ValueError("; ".join(map(_sentence, broken))) from None


def _sentence(problem: Any) -> str:
    message = problem["msg"].removeprefix("Value error, ")
    names = [f"ASSAY_{str(name).upper()}" for name in problem["loc"][:1]]
    return ": ".join([*names, message])
