"""Put an artifact into BentoML's model store."""

import shutil
from pathlib import Path

from runtimes.artifact import CARD_JSON, CARD_TEXT, MANIFEST, Artifact
from runtimes.manifest import ONNX, WEIGHTS


def store_artifact(artifact: Artifact) -> str:
    """Save an artifact to the BentoML model store, unless it is there already.

    Returns:
        The tag, `name:version`; graphs below fp32 have versions of their own, such as `1-int8`.

    Raises:
        ValueError: another artifact is stored under this tag; what is stored never changes.
    """
    import bentoml  # seconds of import that an export without --store need not pay

    tag = _tag(artifact)
    if tag.endswith(":latest"):  # by which the store means whatever came last
        raise ValueError(f"version must not be latest in the model store, got {tag}")
    if found := _find(tag, artifact):
        return found
    manifest = artifact.manifest
    labels = {"task": manifest.task, "precision": manifest.precision}
    metadata = {
        "digest": artifact.digest,
        "architecture": manifest.kind,
        "weights_sha256": manifest.files[ONNX if manifest.source else WEIGHTS],
        "metrics": manifest.metrics,
        "labels": manifest.labels,
    }
    try:
        with bentoml.models.create(tag, labels=labels, metadata=metadata) as made:
            _fill(artifact, Path(made.path))
    except bentoml.exceptions.BentoMLException as error:
        if found := _find(tag, artifact):  # another process was faster
            return found
        raise ValueError(f"{tag} cannot be put into the model store: {error}") from error
    return str(made.tag)


def _find(tag: str, artifact: Artifact) -> str | None:
    """The tag, if this very artifact is stored under it; None if nothing is."""
    import bentoml

    try:
        stored = bentoml.models.get(tag)
    except bentoml.exceptions.NotFound:
        return None
    except bentoml.exceptions.BentoMLException as error:
        raise ValueError(f"{tag} lies in the model store, but cannot be read: {error}") from error
    digest = stored.info.metadata.get("digest")
    if digest != artifact.digest:
        raise ValueError(
            f"version must be new in the model store: {tag} is stored with digest {digest}, "
            f"got {artifact.digest}"
        )
    return str(stored.tag)


def _fill(artifact: Artifact, folder: Path) -> None:
    for name in artifact.manifest.files:
        (folder / name).write_bytes(artifact.read(name))
    for name in (MANIFEST, CARD_JSON, CARD_TEXT):
        if (artifact.folder / name).is_file():
            shutil.copyfile(artifact.folder / name, folder / name)


def _tag(artifact: Artifact) -> str:
    manifest = artifact.manifest
    precision = "" if manifest.precision == "fp32" else f"-{manifest.precision}"
    dynamic = "-dynamic" if manifest.quantization == "dynamic" else ""
    return f"{artifact.name}:{artifact.version}{precision}{dynamic}"
