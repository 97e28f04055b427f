"""A folder as transformers saves a classifier: config, weights, preprocessor or tokenizer."""

import importlib
import importlib.util
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnx import TensorProto

from core.files import sha256
from core.names import listed
from export.importers.input_file import InputFile, read_input
from export.importers.pytorch import Refused, TorchSource
from export.importers.text_input import TextFacts, TextInputFile
from runtimes.manifest import TOKENIZER

if TYPE_CHECKING:
    from torch import nn

CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_IMAGES, _TEXTS = "ForImageClassification", "ForSequenceClassification"
_TOKENS, _MASK = "input_ids", "attention_mask"
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
        labels, texts = config.get("id2label") or {}, None
        if _TEXTS in config["architectures"][0]:
            rows = _count(config, "vocab_size")
            texts = TextFacts(
                kinds={_TOKENS: TensorProto.INT64, _MASK: TensorProto.INT64},
                rows={} if rows is None else {_TOKENS: rows},
                longest=_count(config, "max_position_embeddings"),
                folder=folder,
            )
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
            told=_told(folder, config) if texts is None else TextInputFile(),
            texts=texts,
        )

    @classmethod
    def load(cls, given: str) -> "nn.Module":
        """Build the model and load its weights, all of which must be there."""
        from torch import float32

        # By its name: the environment of what serves has no such package.
        read_texts = _TEXTS in _read_config(Path(given))["architectures"][0]
        kind = f"AutoModel{_TEXTS if read_texts else _IMAGES}"
        model, found = getattr(importlib.import_module("transformers"), kind).from_pretrained(
            given,
            local_files_only=True,
            use_safetensors=True,
            dtype=float32,
            output_loading_info=True,
        )
        lost = sorted(str(key) for key in (*found["missing_keys"], *found["mismatched_keys"]))
        if lost:
            raise Refused(f"must have all weights of its model: missing {listed(lost, _SHOWN)}")
        return _of_scores(model, read_texts=read_texts)

    def facts(self) -> list[tuple[str, str]]:
        """What it tells; see `Source.facts`."""
        return [
            ("folder", self.name),
            ("sha256", self.sha256),
            ("classes", str(self.classes or "not told")),
            *([] if self.texts is None else [(TOKENIZER, self.texts.told_tokenizer(self.name))]),
        ]


def _read_config(folder: Path) -> dict[str, Any]:
    """The config, once the folder is one that can be taken."""
    name = folder.name
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        architectures = [str(each) for each in config.get("architectures") or []]
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{name}/{CONFIG} must be a JSON object in UTF-8") from None
    if len(architectures) != 1 or not any(task in architectures[0] for task in (_IMAGES, _TEXTS)):
        got = listed(architectures, _SHOWN) or "none"
        raise ValueError(
            f"{name}/{CONFIG}: architectures must be one …{_IMAGES} or …{_TEXTS}, got {got}"
        )
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
    found = sorted(
        {CONFIG, PREPROCESSOR, TOKENIZER, _WEIGHTS[1]} & {path.name for path in folder.iterdir()}
    )
    found += sorted(path.name for path in folder.glob("*.safetensors"))
    return "".join(f"{sha256(folder / name)}  {name}\n" for name in found)


def _of_scores(model: Any, *, read_texts: bool) -> "nn.Module":
    """A model of transformers as one from images, or ids and their mask, to scores."""
    from torch import Tensor, nn

    class Scores(nn.Module):
        """Gives the logits alone."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: Tensor) -> Tensor:
            """Logits (B, K) of images (B, C, H, W)."""
            return self.model(pixel_values=images).logits

    class TextScores(nn.Module):
        """The same of texts, which are one segment each."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            """Logits (B, K) of tokens and their mask, (B, N) each."""
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    return TextScores() if read_texts else Scores()
