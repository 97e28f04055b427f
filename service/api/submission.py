"""What a client asks for, its parts of the right types; images and archives are not opened yet."""

import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from robustness.spec import EvaluationSpec
from service.http.body import File
from service.http.documents import SPEC_LIMIT, broken_rules, parse_json
from service.http.keys import Caller
from service.http.openapi import DescribedBy
from service.http.refusal import ApiError
from service.jobs.submit import Submission, spec_error
from service.jobs.table import Priority
from service.jobs.uploads import Uploads, read_texts

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


class EvaluationForm(BaseModel):
    """The form of `POST /v1/evaluations`."""

    model_config = ConfigDict(extra="forbid")

    spec: Annotated[str, DescribedBy(EvaluationSpec)]  # `check_spec` names its rules
    images: list[File] = Field(default=[], description="the images, in any known format")
    texts: str | None = Field(default=None, description='a JSON list, `["a fine film"]`')
    archive: list[File] = Field(
        default=[],
        description="one zip or parquet of images, zip of `images/` and `masks/`, or csv or "
        "parquet of texts",
    )
    labels: str | None = Field(
        default=None,
        description='a JSON list, `["Bag", 3]`, one for each input, or csv `file,label`; '
        "without labels stability is measured",
    )
    priority: Priority = Field(default="normal", description="`high` needs the scope `admin`")


class CostRequest(BaseModel):
    """What `POST /v1/evaluations/cost` reads."""

    model_config = ConfigDict(extra="forbid", strict=True)

    spec: Annotated[Any, DescribedBy(EvaluationSpec)]  # `check_spec` names its rules
    samples: int = Field(ge=1, description="how many inputs", examples=[16])


def read_submission(
    asked: EvaluationForm, key: str | None, caller: Caller, sharer: str
) -> Submission:
    """What a form asks for.

    Args:
        asked: the form.
        key: the Idempotency-Key header, or None.
        caller: who sent it.
        sharer: who shares what it takes with others.

    Raises:
        ApiError: an input is missing or repeated, the spec or the key is not acceptable, or the
            caller may not give the priority.
    """
    if key is not None and not _KEY.fullmatch(key):
        message = "Idempotency-Key must be 1 to 255 visible ASCII characters."
        raise ApiError(422, "invalid_idempotency_key", message)
    if asked.priority == "high" and "admin" not in caller.scopes:
        message = "The priority `high` needs a key with the scope 'admin'."
        raise ApiError(403, "missing_scope", message, {"scope": "admin"})
    spec = check_spec(parse_json(asked.spec, "spec", SPEC_LIMIT))
    return Submission(
        spec=spec,
        uploads=_uploads(asked, spec),
        idempotency_key=key,
        caller=caller,
        sharer=sharer,
        priority=asked.priority,
    )


def check_spec(content: object) -> EvaluationSpec:
    """The spec in a JSON value.

    Raises:
        ApiError: 422 invalid_spec with the first broken rules in `details`.
    """
    try:
        return EvaluationSpec.model_validate(content)
    except ValidationError as error:
        problems = broken_rules(error)
    raise spec_error(problems)


def _uploads(form: EvaluationForm, spec: EvaluationSpec) -> Uploads:
    images, archives, texts = form.images, form.archive, form.texts
    what, other = ("texts", images) if spec.on_texts else ("images", texts)
    if other:
        message = f"attacks.0.name: {spec.attacks[0].name!r} works on {what}; send `{what}`."
        raise ApiError(422, "wrong_inputs", message)
    single = images or texts is not None
    if len(archives) > 1 or (single and archives):
        message = f"Send either {what} in `{what}` or one file in `archive`."
        raise ApiError(422, f"ambiguous_{what}", message)
    if not single and not archives:
        kinds = "csv or parquet" if spec.on_texts else "zip or parquet"
        message = f"There is no {what[:-1]}: send some in `{what}` or one {kinds} in `archive`."
        raise ApiError(422, f"no_{what}", message)
    return Uploads(
        images=images,
        texts=() if texts is None else read_texts(texts),
        archive=archives[0] if archives else None,
        labels=form.labels,
    )
