"""Put an artifact into BentoML's model store."""

import shutil
from pathlib import Path

from export.artifact import CARD_JSON, CARD_TEXT, MANIFEST, Artifact


def store_artifact(artifact: Artifact) -> str:
    """Save an artifact to the BentoML model store, unless it is there already.

    The stored version ends in the digest, so that one name and version can never mean two models.

    Returns:
        The tag, `name:version-digest`.
    """
    import bentoml  # seconds of import that an export without --store need not pay

    tag = f"{artifact.name}:{artifact.version}-{artifact.digest[:12]}"
    try:
        return str(bentoml.models.get(tag).tag)
    except bentoml.exceptions.NotFound:
        pass
    manifest = artifact.manifest
    with bentoml.models.create(
        tag,
        labels={"task": manifest.task, "precision": manifest.precision},
        metadata={
            "digest": artifact.digest,
            "architecture": manifest.architecture,
            "weights_sha256": manifest.files["weights.safetensors"],
            "metrics": manifest.metrics,
            "labels": manifest.labels,
        },
    ) as model:
        for name in (MANIFEST, CARD_JSON, CARD_TEXT, *manifest.files):
            if (artifact.folder / name).is_file():
                shutil.copyfile(artifact.folder / name, Path(model.path_of(name)))
    return str(model.tag)
