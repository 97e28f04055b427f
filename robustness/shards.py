"""The pieces an evaluation is cut into: idempotent files, written whole or not at all.

One shard holds the adversarial inputs of one attack at one radius, with one way of taking
gradients, for one fixed range of 32 images. Its bytes depend on nothing but its identity, which is
written into it: whoever finds a shard with the same identity need not compute it again.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from robustness.spec import AttackSpec, EvaluationSpec, Variant, parse_eps

SHARD_SIZE = 32  # a prediction's last bits depend on its batch, so the partition never changes
FOLDER = "shards"
_METADATA = "identity"  # one key only: safetensors writes several in no fixed order


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One attack x radius x gradient variant x range of images of one model.

    Attributes:
        model: digest of the model.
        attack: the attack; of its radii only `eps` counts here.
        eps: the radius as the spec spells it.
        variant: "plain", "stopped" or "full".
        start: index of the first image.
        stop: index after the last image.
        seed: the evaluation's seed.
    """

    model: str
    attack: AttackSpec
    eps: str
    variant: Variant
    start: int
    stop: int
    seed: int

    @property
    def eps_value(self) -> float:
        """The radius as a number."""
        return parse_eps(self.eps)

    @property
    def own_seed(self) -> int:
        """Seed of this shard's random start.

        It depends on the evaluation's seed, the attack, the radius and the first image, and on
        neither model nor gradient variant: two models meet the same random starts.
        """
        text = json.dumps([self.seed, self.attack.name, self.eps_value, self.start])
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1

    def path(self, folder: Path) -> Path:
        """Where its file lies in an evaluation's folder."""
        radius = self.eps.replace("/", "_")
        return model_folder(folder, self.model) / (
            f"{self.attack.name}-{radius}-{self.variant}-{self.start:06d}.safetensors"
        )

    def identity(self, **circumstances: Any) -> dict[str, Any]:
        """Everything its bytes depend on.

        Args:
            circumstances: digest of the inputs, threads and versions, as JSON values.
        """
        return {
            "model": self.model,
            "attack": self.attack.name,
            "norm": self.attack.norm,
            "eps": self.eps_value,
            "steps": self.attack.num_steps,
            "alpha": self.attack.step_size(self.eps_value),
            "variant": self.variant,
            "images": [self.start, self.stop],
            "seed": self.own_seed,
            **circumstances,
        }


def model_folder(folder: Path, digest: str) -> Path:
    """Where the shards of one model lie in an evaluation's folder."""
    return folder / FOLDER / digest[:16]


def clean_path(folder: Path, digest: str, start: int) -> Path:
    """Where the clean inputs of one range of images lie."""
    return model_folder(folder, digest) / f"clean-{start:06d}.safetensors"


def ranges(samples: int) -> list[range]:
    """The fixed partition of the images: ranges of 32, the last one shorter."""
    return [range(i, min(i + SHARD_SIZE, samples)) for i in range(0, samples, SHARD_SIZE)]


def plan(
    spec: EvaluationSpec, model: str, variants: Sequence[Variant], images: range
) -> list[list[Shard]]:
    """The shards of one model and range of images: for each attack and radius, its variants."""
    return [
        [
            Shard(
                model=model,
                attack=attack,
                eps=eps,
                variant=variant,
                start=images.start,
                stop=images.stop,
                seed=spec.seed,
            )
            for variant in variants
        ]
        for attack, eps in spec.cells
    ]


def content_digest(*arrays: np.ndarray) -> str:
    """sha256 over the shapes, types and bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def write(path: Path, tensors: dict[str, np.ndarray], identity: dict[str, Any]) -> None:
    """Write a shard under a temporary name, flush it to the disk and rename it."""
    content = content_digest(*(tensors[name] for name in sorted(tensors)))
    record = json.dumps({"identity": identity, "content": content}, sort_keys=True)
    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    write_whole(path, save(contiguous, {_METADATA: record}))


def read(path: Path, identity: dict[str, Any] | None = None) -> dict[str, np.ndarray] | None:
    """Read a shard back.

    Args:
        path: its file.
        identity: what it must have been made from; None accepts any.

    Returns:
        Its tensors, or None when it is missing, damaged or made from something else.
    """
    try:
        with safe_open(path, framework="np") as file:
            record = json.loads((file.metadata() or {})[_METADATA])
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        expected = record["identity"] if identity is None else json.loads(json.dumps(identity))
        content = content_digest(*(tensors[name] for name in sorted(tensors)))
        same = record["identity"] == expected and record["content"] == content
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None
    return tensors if same else None


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is found either complete or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote one."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)
