"""How bounds pass the operators of ONNX: one rule each."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from robustness.certificates import affine
from robustness.certificates.affine import Form, U

Value = Form | Tensor
_FOLDED = 8  # units of rounding of what a runtime may compute beforehand
_NORMAL = 1 / math.sqrt(2 * math.pi)
_GELU_TURN = -0.7517915246935645


def _form(value: Value) -> Form:
    if not isinstance(value, Form):
        raise ValueError("bounds are of what depends on the image")
    return value


def _fixed(value: Value) -> Tensor:
    if isinstance(value, Form):
        raise ValueError("there are no bounds where the image decides on weights or axes")
    return value


def _numbers(given: Sequence[Value], options: Mapping[str, Any], place: int, name: str) -> Any:
    """Numbers that are an input of an operator, or in older versions an attribute."""
    stated = _fixed(given[place]) if len(given) > place else torch.zeros(0)
    return stated.tolist() if stated.numel() else options.get(name)


def _add(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    del options
    a, b = given
    if isinstance(a, Form) and isinstance(b, Form):
        return affine.add(a, b)
    return a.shifted(_fixed(b)) if isinstance(a, Form) else _form(b).shifted(a)


def _sub(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    a, b = given
    return _add([a, affine.negative(b) if isinstance(b, Form) else -b], options)


def _mul(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    del options
    a, b = given
    if isinstance(a, Form) and isinstance(b, Form):
        return affine.multiply(a, b, torch.mul, 1)
    return a.scaled(_fixed(b)) if isinstance(a, Form) else _form(b).scaled(a)


def _div(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    a, b = given
    return _mul([a, _reciprocal(b) if isinstance(b, Form) else 1 / b], options)


def _reciprocal(a: Form) -> Form:
    """Of what is above 0."""
    return affine.smooth(
        a, lambda x: torch.where(x > 0, 1 / x, math.nan), lambda x: -1 / x**2,
        lambda low, high: 2 / low**3 + 0 * high,
    )  # fmt: skip


def _matmul(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    del options
    a, b = given
    terms = a.shape[-1]
    if isinstance(a, Form) and isinstance(b, Form):
        return affine.multiply(a, b, torch.matmul, terms)
    if isinstance(a, Form):
        right = _fixed(b)
        return a.linear(lambda x: x @ right, lambda x: x @ right.abs(), terms)
    return _form(b).linear(lambda x: a @ x, lambda x: a.abs() @ x, terms)


def _gemm(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    a, b = given[0], _fixed(given[1])
    if options.get("transA", 0):
        raise ValueError("Gemm has no bounds for a transposed first factor")
    b = (b.T if options.get("transB", 0) else b) * options.get("alpha", 1.0)
    made = _matmul([a, b], {})
    return made.shifted(_fixed(given[2]) * options.get("beta", 1.0)) if len(given) > 2 else made


def _conv(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    x, weight = _form(given[0]), _fixed(given[1])
    if options.get("auto_pad", b"NOTSET") not in (b"NOTSET", b""):
        raise ValueError("Conv has bounds for explicit padding alone")
    sides = weight.ndim - 2
    pads = options.get("pads", [0] * 2 * sides)
    around = [p for i in reversed(range(sides)) for p in (pads[i], pads[i + sides])]
    apply = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}[sides]

    def convolved(weights: Tensor) -> affine.Map:
        """The map of some weights."""
        about = {
            "stride": options.get("strides", [1] * sides),
            "dilation": options.get("dilations", [1] * sides),
            "groups": options.get("group", 1),
        }
        return lambda t: apply(functional.pad(t, around), weights, **about)

    made = x.linear(convolved(weight), convolved(weight.abs()), weight[0].numel())
    return made.shifted(_fixed(given[2]).reshape(-1, *[1] * sides)) if len(given) > 2 else made


def _batch_norm(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    """The runtime may compute factor and offset first, in float32."""
    x = _form(given[0])
    beside = [1] * (len(x.shape) - 2)
    scale, bias, mean, variance = (_fixed(one).reshape(-1, *beside) for one in given[1:])
    factor = scale / (variance + options.get("epsilon", 1e-5)).sqrt()
    made = x.shifted(-mean).scaled(factor).shifted(bias)
    more = ((x.size + mean.abs()) * factor.abs() + bias.abs()) * _FOLDED * U
    return replace(made, rounding=made.rounding + more)


def _mean(x: Form, axes: Sequence[int], *, keep: bool = True, total: bool = False) -> Form:
    count = math.prod(x.shape[axis] for axis in axes)

    def apply(t: Tensor) -> Tensor:
        """The sum, or the mean."""
        made = t.sum(list(axes), keepdim=keep)
        return made if total else made / count

    return x.linear(apply, apply, count)


def _reduce(*, total: bool) -> Callable[[Sequence[Value], Mapping[str, Any]], Form]:
    def rule(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
        """A sum or a mean along axes."""
        x = _form(given[0])
        axes = _numbers(given, options, 1, "axes") or range(len(x.shape))
        return _mean(x, axes, keep=bool(options.get("keepdims", 1)), total=total)

    return rule


def _reduce_max(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    x = _form(given[0])
    axes = _numbers(given, options, 1, "axes") or range(len(x.shape))
    for axis in axes:
        x = affine.largest(x, axis)
    if options.get("keepdims", 1):
        return x
    shape = [n for i, n in enumerate(x.shape) if i not in [axis % len(x.shape) for axis in axes]]
    return x.mapped(lambda t: t.reshape(shape))


def _max_pool(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    x = _form(given[0])
    if any(options.get("pads", [0])) or any(n != 1 for n in options.get("dilations", [1])):
        raise ValueError("MaxPool has bounds without padding and dilation alone")
    size, steps = options["kernel_shape"], options.get("strides", options["kernel_shape"])

    def windows(t: Tensor) -> Tensor:
        """(1, C, H, W) to (1, C, H', W', pixels of a window)."""
        return t.unfold(2, size[0], steps[0]).unfold(3, size[1], steps[1]).flatten(4)

    made = affine.largest(x.mapped(windows), 4)
    return made.mapped(lambda t: t[..., 0])


def _average_pool(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    x = _form(given[0])
    if any(options.get("pads", [0])) or options.get("ceil_mode", 0):
        raise ValueError("AveragePool has bounds without padding alone")
    size = options["kernel_shape"]
    steps = options.get("strides", [1] * len(size))

    def apply(t: Tensor) -> Tensor:
        """The mean of each window."""
        return functional.avg_pool2d(t, size, steps)

    return x.linear(apply, apply, math.prod(size))


def _layer_norm(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    """Along the last axis; the runtime may take the mean of squares minus the squared mean."""
    x, scale, *bias = given
    x, epsilon, count = _form(x), options.get("epsilon", 1e-5), x.shape[-1]
    if options.get("axis", -1) not in (-1, len(x.shape) - 1):
        raise ValueError("LayerNormalization has bounds along the last axis alone")
    shift = torch.eye(count, dtype=torch.float64) - 1 / count
    centered = x.linear(lambda t: t @ shift, lambda t: t @ shift.abs(), count)
    spread = _mean(_square(centered), [-1])
    more = x.size.square().mean(-1, keepdim=True) * (count + 8) * U
    spread = replace(spread, rounding=spread.rounding + more)
    inverse = affine.smooth(
        spread.shifted(torch.tensor(epsilon, dtype=torch.float64)), torch.rsqrt,
        lambda v: -(v**-1.5) / 2, lambda low, high: 0.75 * low**-2.5 + 0 * high,
        epsilon - spread.rounding,
    )  # fmt: skip
    made = _mul([_mul([centered, inverse], {}), scale], {})
    return _add([made, bias[0]], {}) if bias else made


def _square(a: Form) -> Form:
    return affine.humped(a, torch.square, lambda x: 2 * x, 2.0, 0.0)


def _gelu(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    if options.get("approximate", b"none") != b"none":
        raise ValueError("Gelu has bounds for the exact one alone")

    def slope(x: Tensor) -> Tensor:
        """The derivative."""
        return torch.special.ndtr(x) + x * _NORMAL * torch.exp(-x.square() / 2)

    return affine.humped(_form(given[0]), functional.gelu, slope, 2 * _NORMAL, _GELU_TURN)


def _softmax(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    """exp over its sum; as intervals each class against the others at their ends."""
    x, axis = _form(given[0]), options.get("axis", -1)
    x = x.shifted(-x.center.amax(axis, keepdim=True)).rounded(3)  # the runtime shifts by another
    power = affine.smooth(x, torch.exp, torch.exp, lambda low, high: torch.exp(high) + 0 * low)
    made = _mul([power, _reciprocal(_mean(power, [axis], total=True))], {})
    low, high = x.bounds
    below, above = torch.exp(low), torch.exp(high)
    least = below / (below + above.sum(axis, keepdim=True) - above)
    most = above / (above + below.sum(axis, keepdim=True) - below)
    spare = (x.shape[axis] + 2 * 8) * U
    return affine.narrowed(made, least * (1 - spare), most * (1 + spare))


def _clip(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    x = _form(given[0])
    low = given[1] if len(given) > 1 else options.get("min")
    high = given[2] if len(given) > 2 else options.get("max")
    for limit, sign in ((low, 1.0), (high, -1.0)):
        if limit is None or (isinstance(limit, Tensor) and not limit.numel()):
            continue
        limit = torch.as_tensor(limit, dtype=torch.float64)
        one = torch.tensor(sign, dtype=torch.float64)
        x = affine.kinked(_add([x, -limit], {}).scaled(one), 0.0, 1.0)
        x = _add([x.scaled(one), limit], {})
    return x


def _moved(move: Callable[[Tensor, Sequence[Value], Mapping[str, Any]], Tensor]) -> Any:
    """The rule of an operator that moves elements and computes nothing."""

    def rule(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
        """Moves center, slopes and the rest alike."""
        return _form(given[0]).mapped(lambda t: move(t, given, options))

    return rule


def _reshape(t: Tensor, given: Sequence[Value], options: Mapping[str, Any]) -> Tensor:
    shape = _numbers(given, options, 1, "shape")
    kept = not options.get("allowzero", 0)
    return t.reshape([t.shape[i] if n == 0 and kept else n for i, n in enumerate(shape)])


def _squeeze(t: Tensor, given: Sequence[Value], options: Mapping[str, Any]) -> Tensor:
    axes = _numbers(given, options, 1, "axes")
    return t.squeeze() if axes is None else t.squeeze(tuple(axes))


def _unsqueeze(t: Tensor, given: Sequence[Value], options: Mapping[str, Any]) -> Tensor:
    axes = _numbers(given, options, 1, "axes")
    for axis in sorted(axis % (t.ndim + len(axes)) for axis in axes):
        t = t.unsqueeze(axis)
    return t


def _slice(t: Tensor, given: Sequence[Value], options: Mapping[str, Any]) -> Tensor:
    starts, ends = (_numbers(given, options, i, name) for i, name in ((1, "starts"), (2, "ends")))
    axes = _numbers(given, options, 3, "axes") or range(len(starts))
    steps = _numbers(given, options, 4, "steps") or [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        places = torch.tensor(range(t.shape[axis])[start:end:step], dtype=torch.int64)
        t = t.index_select(axis, places)
    return t


def _gather(t: Tensor, given: Sequence[Value], options: Mapping[str, Any]) -> Tensor:
    axis, places = options.get("axis", 0) % t.ndim, torch.as_tensor(given[1])
    made = t.index_select(axis, places.flatten() % t.shape[axis])
    return made.reshape(*t.shape[:axis], *places.shape, *t.shape[axis + 1 :])


def _concat(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
    [first] = [one for one in given if isinstance(one, Form)][:1]
    forms = [one if isinstance(one, Form) else _constant(one, len(first.slope)) for one in given]
    axis = options["axis"] % len(first.shape)
    return Form(
        center=torch.cat([one.center for one in forms], axis),
        slope=torch.cat([one.slope for one in forms], axis + 1),
        rest=torch.cat([one.rest for one in forms], axis),
        rounding=torch.cat([one.rounding for one in forms], axis),
    )


def _constant(value: Tensor, slopes: int) -> Form:
    zero = torch.zeros_like(value)
    return Form(center=value, slope=value.new_zeros(slopes, *value.shape), rest=zero, rounding=zero)


def _split(given: Sequence[Value], options: Mapping[str, Any]) -> list[Form]:
    x, axis = _form(given[0]), options.get("axis", 0)
    sizes = _numbers(given, options, 1, "split")
    if sizes is None:
        sizes = [-(-x.shape[axis] // options["num_outputs"])] * (options["num_outputs"] - 1)
        sizes.append(x.shape[axis] - sum(sizes))
    ends = np.cumsum(sizes).tolist()
    return [
        x.mapped(lambda t, e=end, n=size: t.narrow(axis, e - n, n))
        for end, size in zip(ends, sizes, strict=True)
    ]


def _monotone(function: affine.Map, slope: affine.Map, most: float) -> Any:
    """The rule of a smooth function that rises, with the largest size of its second derivative."""

    def rule(given: Sequence[Value], options: Mapping[str, Any]) -> Form:
        """Element by element."""
        del options
        return affine.smooth(
            _form(given[0]), function, slope, lambda low, high: torch.full_like(low, most)
        )

    return rule


def _kinked(left: float, right: float) -> Any:
    return lambda given, options: affine.kinked(_form(given[0]), left, right)


def _sigmoid_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)


RULES: dict[str, Callable[[Sequence[Value], Mapping[str, Any]], Form | list[Form]]] = {
    "Abs": _kinked(-1.0, 1.0),
    "Add": _add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _div,
    "Flatten": _moved(
        lambda t, _, about: t.reshape(math.prod(t.shape[: about.get("axis", 1)]), -1)
    ),
    "Gather": _moved(_gather),
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda given, _: _mean(_form(given[0]), range(2, len(given[0].shape))),
    "Identity": lambda given, _: _form(given[0]),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda given, about: affine.kinked(_form(given[0]), about.get("alpha", 0.01), 1.0),
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _mul,
    "Neg": lambda given, _: affine.negative(_form(given[0])),
    "ReduceMax": _reduce_max,
    "ReduceMean": _reduce(total=False),
    "ReduceSum": _reduce(total=True),
    "Relu": _kinked(0.0, 1.0),
    "Reshape": _moved(_reshape),
    "Sigmoid": _monotone(torch.sigmoid, _sigmoid_slope, 0.0963),
    "Slice": _moved(_slice),
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _moved(_squeeze),
    "Sub": _sub,
    "Tanh": _monotone(torch.tanh, lambda x: 1 - torch.tanh(x).square(), 0.7699),
    "Transpose": _moved(lambda t, _, about: t.permute(about.get("perm", range(t.ndim)[::-1]))),
    "Unsqueeze": _moved(_unsqueeze),
}
"""By operator of ONNX: from its inputs and attributes to bounds of its outputs."""
