"""What is known of the functions that parameters go through: how their per-sample gradients come about."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from flowtempo.variance.gradient_uses import Direct, Lookup, Outer, Use, wide

Rows = tuple[int, int] | None
"""A part of a parameter: from its first to before its last row; None for the whole."""
Claim = tuple[Any, Use, Rows]
Handler = Callable[..., tuple[Any, list[tuple[Tensor, list[Claim]]]]]
"""Given B and a function's arguments, calls it and returns its result and, for each tensor whose gradient is
needed, what it tells about which parameters."""


def _batched(count: int, *tensors: Any) -> bool:
    return all(isinstance(x, Tensor) and x.ndim > 0 and x.shape[0] == count for x in tensors)


def _as_used(x: Tensor, out: Tensor) -> Tensor:
    """The input as the function saw it: autocast rounds it to the output's dtype."""
    return x.detach().to(out.dtype)


def _positions(x: Tensor) -> Tensor:
    """(b, ..., n) to (b, 1, P, n)."""
    return x.reshape(len(x), 1, -1, x.shape[-1])


def _sum_last(g: Tensor, part: slice) -> Tensor:
    """(b, ..., n) to (b, n)."""
    return g.reshape(len(g), -1, g.shape[-1]).sum(1)


def _sum_channels(g: Tensor, part: slice) -> Tensor:
    """(b, C, ...) to (b, C)."""
    return g.reshape(*g.shape[:2], -1).sum(2)


def _linear(count: int, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    out = F.linear(input, weight, bias)
    if not _batched(count, input) or input.ndim < 2:
        return out, []
    size = (1, math.prod(input.shape[1:-1]), *weight.shape)
    outer = Outer(_as_used(input, out), _positions, _positions, False, size)
    return out, [(out, [(weight, outer, None), (bias, Direct(_sum_last), None)])]


def _matmul(count: int, input: Any, other: Any) -> Any:
    out = torch.matmul(input, other)
    if not _batched(count, input) or input.ndim < 2 or other.ndim != 2:
        return out, []
    size = (1, math.prod(input.shape[1:-1]), *other.shape)
    return out, [(out, [(other, Outer(_as_used(input, out), _positions, _positions, True, size), None)])]


def _tuple(value: Any, dims: int) -> tuple[int, ...]:
    return (int(value),) * dims if isinstance(value, int) else tuple(value) * (dims // len(value))


def _unfold(
    x: Tensor,
    groups: int,
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: list[int],
    dilation: tuple[int, ...],
    places: tuple[int, ...],
) -> Tensor:
    """The patches of a map (b, C, ...) that a convolution sees, (b, G, P, C / G * kernel)."""
    if any(padding):
        x = F.pad(x, padding)
    dims = len(kernel)
    for d in range(dims):
        x = x.unfold(2 + d, dilation[d] * (kernel[d] - 1) + 1, stride[d])
        x = x[..., :: dilation[d]].narrow(2 + d, 0, places[d])
    x = x.permute(0, 1, *range(2 + dims, 2 + 2 * dims), *range(2, 2 + dims))
    channels = x.shape[1] // groups * math.prod(kernel)
    return x.reshape(len(x), groups, channels, math.prod(places)).mT


def _maps(x: Tensor, groups: int) -> Tensor:
    """(b, C, ...) to (b, G, P, C / G)."""
    return x.reshape(len(x), groups, x.shape[1] // groups, -1).mT


def _convolution(
    function: Callable[..., Tensor],
    count: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    out = function(input, weight, bias, stride, padding, dilation, groups)
    if not _batched(count, input) or input.ndim != weight.ndim:
        return out, []
    kernel, dims = tuple(weight.shape[2:]), weight.ndim - 2
    dilation, stride = _tuple(dilation, dims), _tuple(stride, dims)
    if padding == "same":
        spans = [dilation[d] * (kernel[d] - 1) for d in range(dims)]
        sides = [(span // 2, span - span // 2) for span in spans]
    else:
        sides = [(side, side) for side in _tuple(0 if padding == "valid" else padding, dims)]
    flat = [side for pair in reversed(sides) for side in pair]
    places = tuple(out.shape[2:])
    unfold = partial(
        _unfold, groups=groups, kernel=kernel, stride=stride, padding=flat, dilation=dilation, places=places
    )
    size = (groups, math.prod(places), weight.shape[0] // groups, weight[0].numel())
    outer = Outer(_as_used(input, out), unfold, partial(_maps, groups=groups), False, size)
    return out, [(out, [(weight, outer, None), (bias, Direct(_sum_channels), None)])]


def _transposed_convolution(
    function: Callable[..., Tensor],
    count: int,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    out = function(input, weight, bias, stride, padding, output_padding, groups, dilation)
    if not _batched(count, input) or input.ndim != weight.ndim:
        return out, []
    kernel, dims = tuple(weight.shape[2:]), weight.ndim - 2
    flat = [side for pad in reversed(_tuple(padding, dims)) for side in (pad, pad)]
    places = tuple(input.shape[2:])
    unfold = partial(
        _unfold,
        groups=groups,
        kernel=kernel,
        stride=_tuple(stride, dims),
        padding=flat,
        dilation=_tuple(dilation, dims),
        places=places,
    )
    # The weight's gradient is that of the convolution from the output back to the input.
    size = (groups, math.prod(places), weight.shape[0] // groups, weight[0].numel())
    outer = Outer(_as_used(input, out), partial(_maps, groups=groups), unfold, True, size)
    return out, [(out, [(weight, outer, None), (bias, Direct(_sum_channels), None)])]


def _embedding(
    count: int,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    out = F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    if not _batched(count, input) or scale_grad_by_freq or sparse:
        return out, []
    padding = None if padding_idx is None else padding_idx % len(weight)
    return out, [(out, [(weight, Lookup(input.detach(), padding, *weight.shape), None)])]


def _normalised(
    out: Tensor, x: Tensor, normalise: Callable[[Tensor], Tensor], sum_up: Any, weight: Any, bias: Any
) -> Any:
    """Uses of a gain and a bias after a normalisation of each sample by itself."""
    x = x.detach()

    def gain(g: Tensor, part: slice) -> Tensor:
        return sum_up(g * normalise(wide(x[part])), part)  # type: ignore[no-any-return]

    return out, [(out, [(weight, Direct(gain), None), (bias, Direct(sum_up), None)])]


def _layer_norm(
    count: int, input: Tensor, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    out = F.layer_norm(input, normalized_shape, weight, bias, eps)
    if not _batched(count, input) or input.ndim <= len(normalized_shape):
        return out, []
    sum_up = partial(_sum_tail, size=math.prod(normalized_shape))
    plain = partial(F.layer_norm, normalized_shape=normalized_shape, eps=eps)
    return _normalised(out, input, plain, sum_up, weight, bias)


def _rms_norm(
    count: int, input: Tensor, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    out = F.rms_norm(input, normalized_shape, weight, eps)
    if not _batched(count, input) or input.ndim <= len(normalized_shape):
        return out, []
    eps = torch.finfo(input.dtype).eps if eps is None else eps
    sum_up = partial(_sum_tail, size=math.prod(normalized_shape))
    plain = partial(F.rms_norm, normalized_shape=normalized_shape, eps=eps)
    return _normalised(out, input, plain, sum_up, weight, None)


def _sum_tail(g: Tensor, part: slice, size: int) -> Tensor:
    return g.reshape(len(g), -1, size).sum(1)


def _group_norm(
    count: int, input: Tensor, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    out = F.group_norm(input, num_groups, weight, bias, eps)
    if not _batched(count, input):
        return out, []
    plain = partial(F.group_norm, num_groups=num_groups, eps=eps)
    return _normalised(out, input, plain, _sum_channels, weight, bias)


def _instance_norm(
    count: int,
    input: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    out = F.instance_norm(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
    if not _batched(count, input) or not use_input_stats:
        return out, []
    return _normalised(out, input, partial(F.instance_norm, eps=eps), _sum_channels, weight, bias)


def _batch_norm(
    count: int,
    input: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    out = F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if not _batched(count, input) or training:
        return out, []
    plain = partial(F.batch_norm, running_mean=running_mean, running_var=running_var, eps=eps)
    return _normalised(out, input, plain, _sum_channels, weight, bias)


def _sum_to(g: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Sum (b, ...) over what a tensor of `shape` was repeated along, samples excepted: (b, n)."""
    if len(shape) == g.ndim:
        shape = shape[1:]
    g = g.flatten(1, g.ndim - len(shape) - 1).sum(1) if len(shape) < g.ndim - 1 else g
    ones = [d + 1 for d, size in enumerate(shape) if size == 1 and g.shape[d + 1] != 1]
    return (g.sum(ones) if ones else g).reshape(len(g), -1)


def _shared(count: int, parameter: Any, out: Tensor) -> bool:
    """Whether `out` repeats a parameter for each sample."""
    return (
        isinstance(parameter, Tensor)
        and _batched(count, out)
        and (parameter.ndim < out.ndim or (parameter.ndim == out.ndim and parameter.shape[0] == 1))
    )


def _elementwise(function: Callable[..., Tensor], count: int, *args: Any, **kwargs: Any) -> Any:
    """x + p and x * p with a parameter that all samples share."""
    out = function(*args, **kwargs)
    if len(args) != 2 or kwargs:
        return out, []
    claims: list[Claim] = []
    for parameter, other in (args, reversed(args)):
        if not _shared(count, parameter, out) or not _batched(count, other) or other.ndim != out.ndim:
            continue
        shape = tuple(parameter.shape)
        if function is torch.add:
            claims.append((parameter, Direct(partial(_added, shape=shape)), None))
        else:
            scale = _as_used(other, out)
            claims.append((parameter, Direct(partial(_scaled, scale=scale, shape=shape)), None))
    return out, [(out, claims)]


def _added(g: Tensor, part: slice, shape: tuple[int, ...]) -> Tensor:
    return _sum_to(g, shape)


def _scaled(g: Tensor, part: slice, scale: Tensor, shape: tuple[int, ...]) -> Tensor:
    return _sum_to(g * scale[part], shape)


def _expand(count: int, input: Tensor, *sizes: Any, **kwargs: Any) -> Any:
    out = input.expand(*sizes, **kwargs)
    if not _shared(count, input, out):
        return out, []
    return out, [(out, [(input, Direct(partial(_added, shape=tuple(input.shape))), None)])]


def _attention(count: int, *args: Any, **kwargs: Any) -> Any:
    """nn.MultiheadAttention: its projections are ours to watch, what lies between them is torch's.

    Its tensors are (positions, B, width). torch is given the projected inputs and identity projections.
    """
    given = _ATTENTION.bind(*args, **kwargs).arguments
    query, key, value = given["query"], given["key"], given["value"]
    if query.ndim != 3 or not query.shape[1] == key.shape[1] == count:
        return F.multi_head_attention_forward(**given), []
    watched: list[tuple[Tensor, list[Claim]]] = []

    def project(x: Tensor, weight: Tensor, bias: Any, *owners: tuple[Any, Rows]) -> Tensor:
        _, ((out, ((_, outer, _), (_, direct, _))),) = _linear(count, x.transpose(0, 1), weight, bias)
        watched.append((out, [(owners[0][0], outer, owners[0][1]), (owners[1][0], direct, owners[1][1])]))
        return out.transpose(0, 1)  # type: ignore[no-any-return]

    width, packed, packed_bias = given["embed_dim_to_check"], given["in_proj_weight"], given["in_proj_bias"]
    separate = given.get("use_separate_proj_weight", False)
    if query is key and key is value and not separate:
        parts = project(query, packed, packed_bias, (packed, None), (packed_bias, None)).chunk(3, -1)
    else:
        parts = ()
        for i, (x, name) in enumerate(zip((query, key, value), "qkv", strict=True)):
            rows = (i * width, (i + 1) * width)
            weight = given[f"{name}_proj_weight"] if separate else packed[slice(*rows)]
            bias = None if packed_bias is None else packed_bias[slice(*rows)]
            owner = (weight, None) if separate else (packed, rows)
            parts += (project(x, weight, bias, owner, (packed_bias, rows)),)
    weight, bias = given["out_proj_weight"], given["out_proj_bias"]
    eye = torch.eye(width, dtype=parts[0].dtype, device=parts[0].device)
    given.update(dict.fromkeys(("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj_weight"), eye))
    given.update(dict.fromkeys(("in_proj_weight", "in_proj_bias", "out_proj_bias")))
    given.update(query=parts[0], key=parts[1], value=parts[2], use_separate_proj_weight=True)
    attended, scores = F.multi_head_attention_forward(**given)
    return (project(attended, weight, bias, (weight, None), (bias, None)), scores), watched


_ATTENTION = inspect.signature(F.multi_head_attention_forward)

FUNCTIONS: dict[Any, Handler] = {
    F.linear: _linear,
    F.embedding: _embedding,
    F.layer_norm: _layer_norm,
    F.rms_norm: _rms_norm,
    F.group_norm: _group_norm,
    F.instance_norm: _instance_norm,
    F.batch_norm: _batch_norm,
    F.multi_head_attention_forward: _attention,
    Tensor.expand: _expand,
    **{f: partial(_convolution, f) for f in (torch.conv1d, torch.conv2d, torch.conv3d)},
    **{
        f: partial(_transposed_convolution, f)
        for f in (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
    },
    **dict.fromkeys((torch.matmul, Tensor.matmul, Tensor.__matmul__), _matmul),
    **dict.fromkeys(
        (torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__), partial(_elementwise, torch.add)
    ),
    **dict.fromkeys(
        (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__), partial(_elementwise, torch.mul)
    ),
}
"""How to call each function that can be followed."""
