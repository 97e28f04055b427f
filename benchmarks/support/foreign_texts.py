"""Text classifiers of transformers as ONNX files.

`python -m benchmarks.support.foreign_texts NAME TEXTS OUTPUT` builds one from its config, with
random weights, and a WordPiece tokenizer trained on the texts; nothing is downloaded.
"""

import sys
from pathlib import Path

import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor, nn
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
)

from benchmarks.support.foreign_images import even_out

_ARCHITECTURES = {"bert": BertConfig, "distilbert": DistilBertConfig}
_VOCABULARY, _LONGEST, _FITTED = 8000, 32, 32
_MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


class Logits(nn.Module):
    """An architecture from `input_ids` and `attention_mask`, (B, N) int64, to logits (B, K)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """The logits (B, K)."""
        return self.model(input_ids=input_ids, attention_mask=attention_mask).logits


def main(name: str, texts: str, output: str) -> None:
    """Write `NAME.onnx` and `tokenizer.json` into a folder.

    Args:
        name: of the architecture.
        texts: a parquet file of texts.
        output: the folder.
    """
    torch.manual_seed(0)
    torch.set_num_threads(2)
    rows = pq.read_table(texts).column("text").to_pylist()
    tokenizer = _tokenizer(rows)
    tokenizer.save(str(Path(output, "tokenizer.json")))
    config = _ARCHITECTURES[name](vocab_size=_VOCABULARY, num_labels=2)
    made = AutoModelForSequenceClassification.from_config(config, attn_implementation="eager")
    model = Logits(made).eval()
    read = [tokenizer.encode(row) for row in rows[:_FITTED]]
    ids, mask = (
        torch.tensor([getattr(one, key) for one in read]) for key in ("ids", "attention_mask")
    )
    with torch.no_grad():
        even_out(model, model(ids, mask))
    _export(model, (ids[:2], mask[:2]), Path(output, f"{name}.onnx"))


def _tokenizer(texts: list[str]) -> Tokenizer:
    """BERT's: lower case, WordPiece, a mark before and one behind, all of one length."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=_VOCABULARY, special_tokens=_MARKS, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(_LONGEST)
    tokenizer.enable_padding(pad_token="[PAD]")
    return tokenizer


def _export(model: nn.Module, inputs: tuple[Tensor, Tensor], path: Path) -> None:
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", max=512)}
    torch.onnx.export(
        model,
        inputs,
        path,
        input_names=["input_ids", "attention_mask"],
        output_names=["logits"],
        dynamic_shapes=(axes, axes),
        external_data=False,
        verbose=False,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
