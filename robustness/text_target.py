"""A text model under evaluation: served model, and PyTorch model where gradients are needed.

Texts take the same way as in `/classify_text`: the artifact's tokenizer, cut after `max_len`
tokens, padded to the longest of the batch with a mask that leaves out whatever pads.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from data.datasets import listops
from data.tokenizer import TextTokenizer
from robustness.kinds import InputKind, NotPossible, Variant
from robustness.progress import Meter
from robustness.target import (
    ImageTarget,
    Inputs,
    MaskTarget,
    Target,
    device_of,
    gradient_path,
    open_scorer,
    undisturbed,
)
from robustness.tasks import NextTokens, Task
from runtimes.artifact import Artifact
from runtimes.manifest import RANDOM, RANDOM_TOKENS
from runtimes.surprise import score_tokens
from runtimes.tasks import LANGUAGE, MASKS
from runtimes.torch_model import load_torch_model

Relabel = Callable[[str], int | None]
"""The true class of a text, or None where it is no text of the task."""

_BATCH = 32
_ALL_TOKENS = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTarget(Target):
    """One text model under evaluation.

    Attributes:
        tokenizer: from texts to token ids; None for an endpoint, which reads texts itself.
        max_len: tokens after the first `max_len` of a text are cut off.
        relabel: where an edit can change the true class and the class can be computed; None where
            the label of the unchanged text holds.
    """

    tokenizer: TextTokenizer | None
    max_len: int
    relabel: Relabel | None = None
    reads: ClassVar[InputKind] = "text"

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokens (B, N) int64 and mask (B, N) bool, True for real tokens, as the model reads them.

        Raises:
            ValueError: a text that is not Unicode or holds no token, named by its place.
        """
        for index, text in enumerate(texts):
            try:
                text.encode()
            except UnicodeEncodeError:
                raise ValueError(
                    f"texts must be Unicode, but text {index} has half a surrogate"
                ) from None
        return self.require_tokenizer().encode(texts, self.max_len)

    def require_tokenizer(self) -> TextTokenizer:
        """The tokenizer.

        Raises:
            NotPossible: nobody knows how the model reads texts.
        """
        if self.tokenizer is None:
            raise NotPossible(f"nobody knows the tokens of {self.name!r}")
        return self.tokenizer

    def readable(self, texts: Sequence[str]) -> list[bool]:
        """Which texts hold something that the model can read."""
        if self.tokenizer is None:
            return [bool(text.strip()) for text in texts]
        return [len(row) > 0 for row in self.tokenizer.ids(texts, 1)]

    def read_until(self, text: str) -> int:
        """How many characters of a text the model reads at most."""
        if self.tokenizer is None:
            return len(text)
        return int(self.tokenizer.pieces(text, self.max_len).spans[:, 1].max())

    def load(self, part: Any) -> np.ndarray | list[str]:
        """The texts of a set."""
        return list(part)

    def true_classes(self, inputs: Inputs, labels: np.ndarray) -> np.ndarray:
        """See `Target.true_classes`; the clean text's where the changed one has none."""
        if self.relabel is None:
            return labels
        own = [self.relabel(str(text)) for text in inputs]
        known = [old if new is None else new for old, new in zip(labels, own, strict=True)]
        return np.array(known, np.int64)

    def _batches(self, inputs: Inputs) -> Iterator[Inputs]:
        for start in range(0, len(inputs), _BATCH):
            yield inputs[start : start + _BATCH]

    def _read(self, inputs: Inputs) -> np.ndarray | Mapping[str, np.ndarray]:
        if self.endpoint is not None:
            return {"texts": np.array(list(inputs), object)}
        tokens, mask = self.encode(list(inputs))
        return {"tokens": tokens, "mask": mask}

    def _tensors(self, inputs: Inputs) -> tuple[Tensor, ...]:
        device = device_of(self.require_torch_model())
        return tuple(torch.from_numpy(array).to(device) for array in self.encode(list(inputs)))

    def embedding(self) -> nn.Embedding:
        """The PyTorch model's table of token embeddings.

        Raises:
            NotPossible: there is no PyTorch model, or it has none or several such tables.
        """
        tables = [
            part for part in self.require_torch_model().modules() if isinstance(part, nn.Embedding)
        ]
        if len(tables) != 1:
            raise NotPossible(
                f"hotflip needs one table of embeddings, but {self.name!r} has {len(tables)}"
            )
        return tables[0]

    def margin_gradient(
        self,
        tokens: np.ndarray,
        label: int,
        *,
        variant: Variant,
        meter: Meter | None = None,
    ) -> np.ndarray:
        """How the margin of a label changes with the embedding of every token.

        The margin, the label's logit minus the largest other one, and not the cross-entropy: its
        gradient does not vanish where the model is very sure. The PyTorch model is unchanged.

        Args:
            tokens: (N,) int64, all of them real.
            label: class index.
            variant: how gradients treat m of elliptical attention.
            meter: told of the evaluation.

        Returns:
            (N, E) float32, E the width of the embedding.
        """
        torch_model, table = self.require_torch_model(), self.embedding()
        if meter is not None:
            meter.before()
        with (
            undisturbed(torch_model),
            gradient_path(torch_model, variant),
            _observed(table) as embedded,
        ):
            rows = torch.from_numpy(tokens).to(device_of(torch_model))[None]
            [logits] = torch_model(rows, torch.ones_like(rows, dtype=torch.bool))
            others = torch.cat((logits[:label], logits[label + 1 :]))
            (gradient,) = torch.autograd.grad(logits[label] - others.max(), embedded)
        if meter is not None:
            meter.after(1)
        return gradient[0].float().cpu().numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageTarget(TextTarget):
    """One language model under evaluation, asked in windows of `max_len` tokens.

    Word Swap needs no gradients, so it has no PyTorch model.
    """

    task: ClassVar[Task] = NextTokens()

    @property
    def answer_shape(self) -> tuple[int, ...]:
        """See `NextTokens`."""
        return (3,)

    def truth(self, part: Any) -> np.ndarray | None:
        """Nothing of each text, (N, 0): it tells its own next tokens."""
        return np.zeros((len(part), 0), np.int64)

    def _batches(self, inputs: Inputs) -> Iterator[Inputs]:
        for start in range(len(inputs)):
            yield inputs[start : start + 1]

    def _serve(self, inputs: Inputs) -> np.ndarray:
        (ids,) = self.require_tokenizer().ids([str(text) for text in inputs], _ALL_TOKENS)
        return np.array([score_tokens(ids, self.max_len, self._ask)], np.float32)

    def _ask(self, tokens: np.ndarray) -> np.ndarray:
        return self.runtime.predict({"tokens": tokens, "mask": np.ones_like(tokens, bool)})


def open_model(artifact: Artifact, *, threads: int) -> Target:
    """Open the runtime that scores an artifact, its PyTorch model, and a text model's tokenizer.

    A model that reads expressions of ListOps and answers with their digits is one whose labels are
    recomputed after every edit.

    Args:
        artifact: a verified artifact of any task.
        threads: threads of the runtime.
    """
    common: dict[str, Any] = {
        "name": artifact.name,
        "version": artifact.version,
        "digest": artifact.digest,
        "labels": list(artifact.labels),
        "runtime": open_scorer(artifact, threads),
        "notes": tuple(_notes(artifact)),
    }
    if artifact.manifest.task == LANGUAGE:
        options = {"tokenizer": artifact.tokenizer(), "max_len": artifact.text_spec.max_len}
        return LanguageTarget(**common, torch_model=None, **options)
    common["torch_model"] = load_torch_model(artifact) if artifact.manifest.gradients else None
    if artifact.manifest.reads == "images":
        kind = MaskTarget if artifact.manifest.task == MASKS else ImageTarget
        return kind(**common, image_spec=artifact.image_spec, graph=artifact.graph)
    tokenizer = artifact.tokenizer()
    relabel = listops.value_of if reads_listops(tokenizer, artifact.labels) else None
    max_len = artifact.text_spec.max_len
    return TextTarget(**common, tokenizer=tokenizer, max_len=max_len, relabel=relabel)


def _notes(artifact: Artifact) -> Iterator[str]:
    """What was not tried of an imported model, or not on real inputs; and what sees ahead."""
    options = artifact.manifest.config.get("attention_options", {})
    if options.get("causal_metric") == "segment":
        yield (
            f"{artifact.name} sees what it predicts (causal_metric=segment): its perplexity is not "
            "that of a causal model."
        )
    source = artifact.manifest.source
    if source is None:
        return
    name, found = artifact.name, source.gradients
    if found is None:
        why = f" ({source.blind})" if source.blind else ""
        yield (
            f"{name} was imported without gradients{why}: attacks that follow them were not tried, "
            "and would find more."
        )
        return
    if artifact.manifest.quantization is not None:
        yield (
            f"Attacks follow a copy of {name} without its rounding to 8 bit, which gives the same "
            f"class on {found.agreement:.1%} of {found.samples} samples; every figure that is "
            "confirmed is the served graph's."
        )
    if found.data in (RANDOM, RANDOM_TOKENS):
        yield (
            f"The gradients of {name} were compared with the served graph on {found.data} alone; "
            "import it with --data to compare them on real inputs."
        )


def reads_listops(tokenizer: TextTokenizer, labels: Sequence[str]) -> bool:
    """Whether a model knows the digits as classes and nothing but the task's own tokens."""
    [row] = tokenizer.ids([" ".join(listops.TOKENS)], listops.PAD + 1)
    same = row.tolist() == list(range(listops.PAD))
    return same and list(labels) == listops.TOKENS[:10] and tokenizer.vocab_size == listops.PAD + 1


@contextmanager
def _observed(table: nn.Embedding) -> Iterator[list[Tensor]]:
    """Make what a table gives inside the block the start of the graph, and keep it in a list."""
    embedded: list[Tensor] = []

    def keep(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Cut the graph behind the table."""
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    hook = table.register_forward_hook(keep)
    try:
        yield embedded
    finally:
        hook.remove()
