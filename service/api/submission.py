"""What a client asks for, its parts of the right types; images and archives are not opened yet."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from robustness.spec import EvaluationSpec
from service.http.callers import Caller
from service.http.errors import ApiError
from service.http.forms import Form, Upload
from service.http.strict_json import broken_rules, parse_json
from service.jobs.job import PRIORITIES, Priority
from service.jobs.limits import spec_error
from service.jobs.text_uploads import read_texts
from service.jobs.uploads import Uploads

_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The request for an evaluation, and who sent it."""

    spec: EvaluationSpec
    uploads: Uploads
    idempotency_key: str | None
    caller: Caller
    priority: Priority = "normal"

    @property
    def fingerprint(self) -> str:
        """A digest that tells a repeated request from another one."""
        uploads = self.uploads
        content: dict[str, Any] = {
            "spec": self.spec.model_dump(mode="json"),
            "labels": uploads.labels,
            "images": [_digest(image) for image in uploads.images],
            "texts": list(uploads.texts),
            "archive": uploads.archive and _digest(uploads.archive),
        }
        # Requests of before there were priorities keep the digest that they were stored with.
        content |= {} if self.priority == "normal" else {"priority": self.priority}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def read_submission(form: Form, key: str | None, caller: Caller) -> Submission:
    """Sort out the fields `spec`, `labels`, `images`, `texts`, `archive` and `priority` of a form.

    Args:
        form: the form, of these fields only.
        key: the Idempotency-Key header, or None.
        caller: who sent it.

    Raises:
        ApiError: a part is missing or repeated, the spec is not acceptable, or the caller may not
            give the priority.
    """
    if key is not None and not _KEY.fullmatch(key):
        message = "Idempotency-Key must be 1 to 255 visible ASCII characters."
        raise ApiError(422, "invalid_idempotency_key", message)
    if "spec" not in form.fields:
        raise ApiError(422, "no_spec", "The field `spec` is missing.")
    spec = check_spec(parse_json(form.fields["spec"], "spec"))
    return Submission(
        spec=spec,
        uploads=_uploads(form, spec),
        idempotency_key=key,
        caller=caller,
        priority=_priority(form.fields.get("priority", "normal"), caller),
    )


def check_spec(content: object) -> EvaluationSpec:
    """The spec in a JSON value.

    Raises:
        ApiError: 422 invalid_spec with every broken rule in `details`.
    """
    try:
        return EvaluationSpec.model_validate(content)
    except ValidationError as error:
        problems = broken_rules(error)
    raise spec_error(problems)


def _priority(text: str, caller: Caller) -> Priority:
    for name in PRIORITIES:
        if text == name:
            break
    else:
        message = f"The field `priority` must be one of {', '.join(PRIORITIES)}."
        raise ApiError(422, "invalid_priority", message)
    if name == "high" and "admin" not in caller.scopes:
        message = "The priority `high` needs a key with the scope 'admin'."
        raise ApiError(403, "missing_scope", message, {"scope": "admin"})
    return name


def _uploads(form: Form, spec: EvaluationSpec) -> Uploads:
    images, archives, texts = form.files["images"], form.files["archive"], form.fields.get("texts")
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
        on_texts=spec.on_texts,
        images=images,
        texts=() if texts is None else read_texts(texts),
        archive=archives[0] if archives else None,
        labels=form.fields.get("labels"),
    )


def _digest(upload: Upload) -> list[str]:
    return [upload.name, hashlib.sha256(upload.content).hexdigest()]
