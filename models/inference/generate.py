"""Continue a text token by token, with a cache of what the model has seen."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from models.language import LanguageModel, Seen


def generate(
    model: LanguageModel,
    prompt: Tensor,
    *,
    count: int,
    temperature: float = 0.0,
    seed: int = 0,
    banned: Sequence[int] = (),
    cache: bool = True,
) -> Tensor:
    """Continue prompts.

    Args:
        model: in eval mode.
        prompt: (B, n) int64, n >= 1; of a longer one than the context the last tokens count.
        count: tokens to add.
        temperature: 0 takes the likeliest token, more draws from softmax(logits / temperature).
        seed: of the draws.
        banned: ids that are never taken, such as padding.
        cache: keep what the model has seen, instead of reading it again for every token; the
            tokens are the same.

    Returns:
        The added tokens (B, count).

    Raises:
        ValueError: see `tokens_after`.
    """
    options = {"temperature": temperature, "seed": seed, "banned": banned, "cache": cache}
    return torch.stack([*tokens_after(model, prompt, count=count, **options)], dim=1)


def tokens_after(
    model: LanguageModel,
    prompt: Tensor,
    *,
    count: int,
    temperature: float,
    seed: int,
    banned: Sequence[int],
    cache: bool,
) -> Iterator[Tensor]:
    """Give each next token (B,) as soon as it is chosen; arguments as of `generate`.

    Where the context is full, its older half is forgotten.

    Raises:
        ValueError: no prompt, a count or temperature below 0, or an attention without a cache.
    """
    if prompt.dim() != 2 or not prompt.shape[1]:
        raise ValueError(f"prompt must be (B, n >= 1), got {tuple(prompt.shape)}")
    if count < 0 or temperature < 0:
        raise ValueError(f"count and temperature must be at least 0, got {count}, {temperature}")
    context, generator = model.config.seq_len, torch.Generator(prompt.device).manual_seed(seed)
    text, seen = prompt[:, -context:], Seen()
    for _ in range(count):
        if text.shape[1] > context:
            text, seen = text[:, -((context + 1) // 2) :], Seen()
        with torch.inference_mode():
            logits = model.extend(text[:, seen.length :], seen) if cache else model(text)
            token = _choose(logits[:, -1], temperature, generator, banned)
        text = torch.cat((text, token[:, None]), dim=1)
        yield token


def _choose(
    logits: Tensor, temperature: float, generator: torch.Generator, banned: Sequence[int]
) -> Tensor:
    """The next token (B,) of logits (B, V)."""
    excluded = torch.tensor(banned, dtype=torch.int64, device=logits.device)
    logits = logits.double().index_fill(1, excluded, -torch.inf)
    if temperature == 0:
        return logits.argmax(1)
    return torch.multinomial((logits / temperature).softmax(1), 1, generator=generator)[:, 0]
