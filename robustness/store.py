"""The pieces an evaluation is cut into: idempotent files, written whole or not at all.

One shard holds the adversarial inputs of one attack at one radius, with one way of taking
gradients, for one fixed range of 32 inputs. Its bytes depend on nothing but its identity, which is
written into it: whoever finds a shard with the same identity need not compute it again. Clean
inputs and results are kept in the same way.
"""

import hashlib
import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from core.files import write_whole
from robustness.attacks.base import Attack, Budget
from robustness.kinds import Variant
from robustness.spec import Cell

SHARD_SIZE = 32  # a prediction's last bits depend on its batch, so the partition never changes
FOLDER = "shards"
T = TypeVar("T")
_METADATA = "identity"  # one key only: safetensors writes several in no fixed order


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One attack x point x gradient variant x range of inputs of one model.

    Attributes:
        model: digest of the model.
        attack: label of the attack as the spec asks for it.
        part: the attack that made it: itself, or one of AutoAttack's four.
        budget: of the run; see `Attack.searched`.
        variant: "plain", "stopped" or "full".
        start: index of the first input.
    """

    model: str
    attack: str
    part: Attack
    budget: Budget
    variant: Variant
    start: int

    def path(self, folder: Path) -> Path:
        """Where its file lies in an evaluation's folder."""
        made = "" if self.part.label == self.attack else f".{self.part.name}"
        where = _where(self.part, self.budget)
        return model_folder(folder, self.model) / (
            f"{_as_file_name(self.attack)}{made}{where}-{self.variant}-{self.start:06d}.safetensors"
        )


def model_folder(folder: Path, digest: str) -> Path:
    """Where the shards of one model lie in an evaluation's folder."""
    return folder / FOLDER / digest[:16]


def clean_path(folder: Path, digest: str, start: int) -> Path:
    """Where the clean inputs of one range of inputs lie."""
    return model_folder(folder, digest) / f"clean-{start:06d}.safetensors"


def diagnostics_path(folder: Path, digest: str) -> Path:
    """Where the diagnostics of one model lie."""
    return model_folder(folder, digest) / "diagnostics.safetensors"


def ranges(samples: int) -> list[range]:
    """The fixed partition of the images: ranges of 32, the last one shorter."""
    return [range(i, min(i + SHARD_SIZE, samples)) for i in range(0, samples, SHARD_SIZE)]


def result_path(folder: Path, digest: str, cell: Cell, start: int) -> Path:
    """Where the result on one cell and one range of inputs lies."""
    label = _as_file_name(cell.attack.label)
    name = f"result-{label}{_where(cell.attack, cell.budget)}-{start:06d}.safetensors"
    return model_folder(folder, digest) / name


def _where(attack: Attack, budget: Budget) -> str:
    norm = "" if attack.norm_name is None else f"-{attack.norm_name}"
    return f"{norm}-{_as_file_name(budget.text)}"


def as_array(inputs: np.ndarray | list[str]) -> np.ndarray:
    """Inputs as a shard stores them: images as they are, texts as JSON in bytes."""
    if isinstance(inputs, np.ndarray):
        return inputs
    return np.frombuffer(json.dumps(inputs).encode(), np.uint8)


def as_inputs(array: np.ndarray) -> np.ndarray | list[str]:
    """Inputs from what a shard stores: what is in bytes are texts."""
    return json.loads(array.tobytes()) if array.dtype == np.uint8 else array


def _as_file_name(point: str) -> str:
    return point.replace("/", "_").replace(":", "_")


def content_digest(*arrays: np.ndarray) -> str:
    """sha256 over the shapes, types and bytes of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def of_labels(labels: np.ndarray | None) -> list[int] | str | None:
    """Labels (N,) as part of an identity; of masks (N, H, W) their digest."""
    if labels is None or labels.ndim == 1:
        return None if labels is None else labels.tolist()
    return content_digest(labels.astype(np.int64))


def write(path: Path, tensors: dict[str, Any], identity: dict[str, Any]) -> None:
    """Write a shard, without what is None, under another name; flush it to the disk, rename it."""
    tensors = {name: array for name, array in tensors.items() if array is not None}
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


class Lost(OSError):
    """A file that must be there is missing or damaged."""


def whole(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a shard that must be there.

    Raises:
        Lost: it is missing or damaged.
    """
    stored = read(path)
    if stored is None:
        raise Lost(f"{path.name} is missing or damaged")
    return stored


def result(stored: dict[str, np.ndarray], kind: type[T]) -> T:
    """A result of some kind from the tensors of its shard; what may be None may be missing."""
    known = fields(kind)  # pyright: ignore[reportArgumentType]  a dataclass
    needed = {each.name: stored[each.name] for each in known if each.default is MISSING}
    return kind(**needed, **{n.name: stored.get(n.name) for n in known if n.name not in needed})


def load(path: Path, kind: type[T], identity: dict[str, Any]) -> T | None:
    """A result of some kind from its file, see `read`; None if it must be made."""
    stored = read(path, identity)
    return None if stored is None else result(stored, kind)
