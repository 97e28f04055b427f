"""A folder as transformers saves an image classifier: config, weights, preprocessor."""

import importlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from core.files import sha256
from core.names import listed
from export.importers.input_file import InputFile, read_input
from export.importers.pytorch import Refused, TorchSource

if TYPE_CHECKING:
    from torch import nn

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_TASK = "ForImageClassification"
_SHOWN = 4


@dataclass(frozen=True, kw_only=True)
class HuggingFaceFolder(TorchSource):
    """A folder of Hugging Face's, of which transformers runs its own code alone."""

    format = "huggingface"
    wanted = "a Hugging Face folder"
    environment = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

    @classmethod
    def takes(cls, given: str) -> bool:
        """Whether it is a folder with a config."""
        return Path(given, CONFIG).is_file()

    @classmethod
    def open(cls, given: str) -> "HuggingFaceFolder":
        """Read its JSON files."""
        folder = Path(given).absolute()
        config = _read_config(folder)
        labels = config.get("id2label") or {}
        try:
            labels = [str(labels[index]) for index in sorted(labels, key=int)]
        except (TypeError, ValueError):
            raise ValueError(
                f"{folder.name}/{CONFIG}: id2label must name classes by their index"
            ) from None
        return cls(
            name=folder.name,
            given=str(folder),
            sha256=sha256(_digests(folder).encode()),
            shape=(None, _count(config, "num_channels"), None, None),
            classes=len(labels) or None,
            labels=labels,
            told=_told(folder, config),
        )

    @classmethod
    def load(cls, given: str) -> "nn.Module":
        """Build the model and load its weights, all of which must be there."""
        from torch import float32

        # By its name: the environment of what serves has no such package.
        kind = importlib.import_module("transformers").AutoModelForImageClassification
        model, found = kind.from_pretrained(
            given,
            local_files_only=True,
            use_safetensors=True,
            dtype=float32,
            output_loading_info=True,
        )
        lost = sorted(str(key) for key in (*found["missing_keys"], *found["mismatched_keys"]))
        if lost:
            raise Refused(f"must have all weights of its model: missing {listed(lost, _SHOWN)}")
        return _of_scores(model)

    def facts(self) -> list[tuple[str, str]]:
        """What it tells; see `Source.facts`."""
        return [
            ("folder", self.name),
            ("sha256", self.sha256),
            ("classes", str(self.classes or "not told")),
        ]


def _read_config(folder: Path) -> dict[str, Any]:
    """The config, once the folder is one that can be taken."""
    name = folder.name
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        architectures = [str(each) for each in config.get("architectures") or []]
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{name}/{CONFIG} must be a JSON object in UTF-8") from None
    if len(architectures) != 1 or _TASK not in architectures[0]:
        got = listed(architectures, _SHOWN) or "none"
        raise ValueError(f"{name}/{CONFIG}: architectures must be one …{_TASK}, got {got}")
    if config.get("auto_map"):
        raise ValueError(
            f"{name}/{CONFIG}: auto_map names code of its own, which is not run; give "
            "module:function of your own instead"
        )
    if not any((folder / each).is_file() for each in _WEIGHTS):
        raise ValueError(f"{name} must hold {_WEIGHTS[0]}; pickled weights are not read")
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(
            f"{name} is a Hugging Face folder, which needs transformers (requirements/import.in)"
        )
    return config


def _told(folder: Path, config: dict[str, Any]) -> InputFile:
    """What its preprocessor does, or the size that its config names."""
    if (folder / PREPROCESSOR).is_file():
        return read_input(str(folder / PREPROCESSOR))
    size = _count(config, "image_size")
    return InputFile() if size is None else InputFile(size=[size, size])


def _count(config: dict[str, Any], key: str) -> int | None:
    found = config.get(key)
    return found if isinstance(found, int) and found > 0 else None


def _digests(folder: Path) -> str:
    """The digests of its files by name, one a line, as sha256sum writes them."""
    found = sorted({CONFIG, PREPROCESSOR, _WEIGHTS[1]} & {path.name for path in folder.iterdir()})
    found += sorted(path.name for path in folder.glob("*.safetensors"))
    return "".join(f"{sha256(folder / name)}  {name}\n" for name in found)


def _of_scores(model: Any) -> "nn.Module":
    """A model of transformers as one from images to scores."""
    from torch import Tensor, nn

    class Scores(nn.Module):
        """Gives the logits alone."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            return self.model(pixel_values=images).logits

    return Scores()
