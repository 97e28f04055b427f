"""One run of a model with everything that its layers took and gave."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.attention.aligned import AlignedAttention, places_of
from models.attention.base import Attention
from models.attention.class_attention import ClassAttention
from models.layers.experts import Mixture
from models.layers.routing import Routes
from models.segmenter import Segmenter
from models.transject import Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a module: its arguments in the order of its `forward`, defaults included.

    `drawn_from` is the state of its own generator before the call; None if it has none.
    """

    module: nn.Module
    arguments: tuple[Any, ...]
    result: Any
    drawn_from: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRecord:
    """What one layer took and gave: tokens (S, N, C) of S sequences, with their mask (S, N).

    `mixer` is the call of the layer's attention or experts, `routes` those of its tokens where its
    feed-forward is a mixture.
    """

    inputs: Tensor
    outputs: Tensor
    mask: Tensor | None
    mixer: Call
    routes: Routes | None

    @torch.no_grad()
    def attention_map(self) -> Tensor | None:
        """The attention weights (S, H, N, N) of the run; None in a layer that has none."""
        layer = self.mixer.module
        if not isinstance(layer, Attention) or layer.no_map:
            return None
        with _replayed(self.mixer):
            return layer.attention_map(*self.mixer.arguments)

    @torch.no_grad()
    def metric(self) -> Tensor | None:
        """The m (S, H, D) of the run; None in a layer that estimates none."""
        layer = self.mixer.module
        if not isinstance(layer, Attention):
            return None
        with _replayed(self.mixer):
            return layer.observed_metric(*self.mixer.arguments)

    @torch.no_grad()
    def keys(self) -> Tensor | None:
        """The keys (S, H, N, D) as they are projected; None in a layer without keys of its own."""
        layer = self.mixer.module
        if not isinstance(layer, Attention) or layer.maps < 3:
            return None
        return layer.split(layer.qkv(self.mixer.arguments[0]))[1]

    @torch.no_grad()
    def heads(self) -> Tensor | None:
        """The tokens (S, H, N, D) that each head of attention gave; None in other layers."""
        layer = self.mixer.module
        if not isinstance(layer, Attention):
            return None
        given: list[Tensor] = []

        @_of_this_thread
        def keep(_: nn.Module, arguments: tuple[Tensor]) -> None:
            """Keep what the heads gave, side by side."""
            given.append(arguments[0])

        handle = layer.proj.register_forward_pre_hook(keep)
        try:
            with _replayed(self.mixer):
                layer(*self.mixer.arguments)
        finally:
            handle.remove()
        (tokens,) = given
        if isinstance(layer, AlignedAttention) and self.mask is not None:
            tokens = tokens.gather(1, places_of(self.mask)[:, :, None].expand_as(tokens))
        return tokens.unflatten(2, (layer.num_heads, -1)).transpose(1, 2)

    @torch.no_grad()
    def experts(self) -> tuple[Tensor, Tensor] | None:
        """The shares (S, E) of the experts and the tokens (S, E, N, C) that each gave, if any."""
        layer = self.mixer.module
        if not isinstance(layer, Experts):
            return None
        x, eigenvalues, step, _ = self.mixer.arguments
        return self.mixer.result[1], layer.outputs(x, eigenvalues, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a model did in one run.

    S is the batch size B, or 2 B for two towers, where the sequences of a sample are neighbors.

    Attributes:
        logits: (B, K), of a segmenter (B, K, H, W).
        layers: the layers that mix tokens, in order; of a segmenter those of its encoder.
        class_maps: attention (S, H, 1, 1 + N) of class-attention layers, in order; mostly none.
        class_tokens: how many of the layers' first tokens are class tokens.
        images: whether the other tokens are the patches of an image.
    """

    logits: Tensor
    layers: tuple[LayerRecord, ...]
    class_maps: tuple[Tensor, ...]
    class_tokens: int
    images: bool


@torch.no_grad()
def observe(model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Observation:
    """Run a model of `models.names()` in eval mode and keep what its layers took and gave.

    The model's modes and hooks are left as they were, also after an error, and torch's global
    generator is untouched. What other threads ask of the model meanwhile is not recorded.

    Args:
        model: not folded.
        inputs: what the model takes, images or token ids.
        mask: bool, True for real tokens; None if all are.

    Raises:
        ValueError: the model has no layer that can be observed, calls one more than once or wraps
            the network that has them, or the inputs hold no sample.
    """
    if not inputs.ndim or not len(inputs):
        raise ValueError(f"inputs must hold at least one sample, got {tuple(inputs.shape)}")
    devices = [inputs.device] if inputs.is_cuda else []
    with torch.random.fork_rng(devices), _in_eval_mode(model), _recorded(model) as (layers, heads):
        logits = model(inputs) if mask is None else model(inputs, mask)
    if not layers:
        raise ValueError("model must have attention or experts to observe, and not be folded")
    if len({id(layer.mixer.module) for layer in layers}) < len(layers):
        raise ValueError("model must call each of its layers once to be observed")
    images = inputs.is_floating_point()
    config: Any = getattr(model, "config", None)
    if config is None:
        raise ValueError("model must be built by models.build to be observed, not wrap such a one")
    length = (config.img_size // config.patch_size) ** 2 if images else inputs.shape[-1]
    return Observation(
        logits=logits,
        layers=tuple(layers),
        class_maps=tuple(heads),
        class_tokens=layers[0].outputs.shape[1] - length,
        images=images,
    )


def has_observable_layers(model: nn.Module) -> bool:
    """Whether a model, or one inside it, has attention or experts that `observe` knows."""
    return any(isinstance(module, Attention | Experts) for module in model.modules())


@contextmanager
def _in_eval_mode(model: nn.Module) -> Iterator[None]:
    before = {module: module.training for module in model.modules()}
    try:
        model.eval()
        yield
    finally:
        for module, training in before.items():
            module.training = training


@contextmanager
def _recorded(model: nn.Module) -> Iterator[tuple[list[LayerRecord], list[Tensor]]]:
    """Record the layers of a model and the maps of its class attention inside a `with` block."""
    layers: list[LayerRecord] = []
    class_maps: list[Tensor] = []

    @_of_this_thread
    def keep_class_map(module: ClassAttention, arguments: tuple[Any, ...], _: Any) -> None:
        """Keep the map of a class attention."""
        class_maps.append(module.attention_map(*arguments))

    with ExitStack() as hooks:
        # The decoder of a segmenter adds tokens to those of the image.
        observed = model.encoder if isinstance(model, Segmenter) else model
        for module in observed.modules():
            mixer = getattr(module, "attn", getattr(module, "experts", None))
            if isinstance(mixer, Attention | Experts):
                _record_layer(module, mixer, layers, hooks)
            if isinstance(module, ClassAttention):
                hooks.callback(module.register_forward_hook(keep_class_map).remove)
        yield layers, class_maps


def _record_layer(
    layer: nn.Module, mixer: nn.Module, records: list[LayerRecord], hooks: ExitStack
) -> None:
    """Hook a layer and its mixer until `hooks` closes; every call of the layer adds a record."""
    states: list[Tensor | None] = []
    calls: list[Call] = []
    routes: list[Routes] = []

    @_of_this_thread
    def keep_state(*_: Any) -> None:
        """Keep the state of the generator before a call of the mixer."""
        generator = getattr(mixer, "generator", None)
        states.append(None if generator is None else generator.get_state())

    @_of_this_thread
    def keep_call(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """Keep a call of the mixer."""
        bound = inspect.signature(mixer.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        state = states.pop()
        calls.append(Call(module=mixer, arguments=bound.args, result=result, drawn_from=state))

    @_of_this_thread
    def keep_routes(_: Any, __: Any, result: Routes) -> None:
        """Keep the routes of the layer's mixture."""
        routes.append(result)

    @_of_this_thread
    def keep_layer(_: Any, args: tuple[Any, ...], result: tuple[Tensor, Any]) -> None:
        """Keep what the layer took and gave."""
        call, own = calls.pop(), routes.pop() if routes else None
        tokens = {"inputs": args[0], "outputs": result[0], "mask": call.arguments[-1]}
        records.append(LayerRecord(**tokens, mixer=call, routes=own))

    hooks.callback(mixer.register_forward_pre_hook(keep_state).remove)
    hooks.callback(mixer.register_forward_hook(keep_call, with_kwargs=True).remove)
    hooks.callback(layer.register_forward_hook(keep_layer).remove)
    mixture = getattr(layer, "mlp", None)
    if isinstance(mixture, Mixture):
        hooks.callback(mixture.router.register_forward_hook(keep_routes).remove)


def _of_this_thread(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook that lets pass the calls of other threads, such as predictions served meanwhile."""
    observer = threading.get_ident()

    def guarded(*args: Any) -> None:
        """Call the hook in the thread of the observer alone."""
        if threading.get_ident() == observer:
            hook(*args)

    return guarded


@contextmanager
def _replayed(call: Call) -> Iterator[None]:
    """Let a module that draws at random draw again what it drew in the recorded call."""
    generator = getattr(call.module, "generator", None)
    if generator is None or call.drawn_from is None:
        yield
        return
    now = generator.get_state()
    try:
        generator.set_state(call.drawn_from)
        yield
    finally:
        generator.set_state(now)
