"""Convolutions and products of matrices, pools, normalizations as at inference, reductions and sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Numbers, Operator, whole_numbers
from worker.quantizer.ops.windows import PoolPlaces, Window


def _spatial_form(name: str, rank: int) -> Callable[..., Tensor]:
    """``conv2d`` and the like, for so many spatial axes."""
    form: Callable[..., Tensor] = getattr(functional, f"{name}{rank}d")
    return form


def _pad(x: Tensor, before: Sequence[int], after: Sequence[int]) -> Tensor:
    """Zeros around the spatial axes; negative numbers cut."""
    return functional.pad(x, [n for pair in zip(reversed(before), reversed(after), strict=True) for n in pair])


def _conv(attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    window = Window.of(tuple(weight.shape[2:]), attributes, transposed=False)
    before, after = window.padding(tuple(x.shape[2:]))
    padding = before
    if before != after:
        x, padding = _pad(x, before, after), (0,) * len(before)
    if x.dim() == 4:  # CPU kernels take less time with channels last, most of all depthwise ones
        x = x.contiguous(memory_format=torch.channels_last)
    return _spatial_form("conv", len(before))(
        x,
        weight,
        bias,
        stride=window.strides,
        padding=padding,
        dilation=window.dilations,
        groups=attributes.get("group", 1),
    )


def _conv_transpose(attributes: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The whole transposed convolution, cut (or filled with zeros) to what the pads leave; the bias comes last."""
    window, size = Window.of(tuple(weight.shape[2:]), attributes, transposed=True), tuple(x.shape[2:])
    whole = _spatial_form("conv_transpose", len(size))(
        x, weight, stride=window.strides, dilation=window.dilations, groups=attributes.get("group", 1)
    )
    before, after = window.padding(size)
    extra = window.output_padding
    cut = _pad(whole, [-n for n in before], [more - n for n, more in zip(after, extra, strict=True)])
    return cut if bias is None else cut + bias.reshape(-1, *[1] * len(size))


def _gemm(attributes: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.T if attributes.get("transA", 0) else a
    b = b.T if attributes.get("transB", 0) else b
    alpha, beta = float(attributes.get("alpha", 1.0)), float(attributes.get("beta", 1.0))
    if alpha == 1.0 and beta == 1.0 and c is not None:
        return torch.addmm(c, a, b)
    product = torch.matmul(a, b) * alpha
    return product if c is None else product + c * beta


# Pools: what a window, or the whole of the spatial axes, is brought down to.


def _padded(places: PoolPlaces, x: Tensor, value: float) -> Tensor:
    """The input with what its windows read around it, and no more, so that no window needs padding."""
    pairs = zip(reversed(places.before), reversed(places.read_behind), strict=True)
    return functional.pad(x, [n for before, behind in pairs for n in (before, behind)], value=value)


def _sums(places: PoolPlaces, x: Tensor) -> Tensor:
    """The sum of every window, with zeros as padding."""
    padded, window, rank = _padded(places, x, 0.0), places.window, len(places.size)
    if max(window.dilations) == 1:
        taps = reduce(int.__mul__, window.kernel)
        return _spatial_form("avg_pool", rank)(padded, window.kernel, window.strides) * taps
    for axis in range(rank):
        dilation, stride = window.dilations[axis], window.strides[axis]
        length = (places.count[axis] - 1) * stride + 1
        moved = padded.movedim(axis + 2, 0)
        firsts = [tap * dilation for tap in range(window.kernel[axis])]
        padded = reduce(torch.add, [moved[at : at + length : stride] for at in firsts]).movedim(0, axis + 2)
    return padded


def _max_pool(attributes: Attributes, x: Tensor) -> Tensor:
    places = PoolPlaces.of(attributes, tuple(x.shape[2:]))
    window, pads = places.window, places.torch_pads
    if pads is None:
        x, pads = _padded(places, x, -torch.inf), (0,) * len(places.size)
    return _spatial_form("max_pool", len(pads))(x, window.kernel, window.strides, pads, window.dilations)


def _average_pool(attributes: Attributes, x: Tensor) -> Tensor:
    places, with_padding = PoolPlaces.of(attributes, tuple(x.shape[2:])), bool(attributes.get("count_include_pad", 0))
    window, pads = places.window, places.torch_pads
    if pads is not None and max(window.dilations) == 1:
        return _spatial_form("avg_pool", len(pads))(x, window.kernel, window.strides, pads, False, with_padding)
    sums = _sums(places, x)
    for axis in range(len(places.size)):
        taps = torch.tensor(places.taps(axis, padding=with_padding), dtype=x.dtype, device=x.device)
        sums = sums / taps.reshape(-1, *[1] * (len(places.size) - 1 - axis))
    return sums


def _lp_pool(attributes: Attributes, x: Tensor) -> Tensor:
    p = attributes.get("p", 2)
    sums = _sums(PoolPlaces.of(attributes, tuple(x.shape[2:])), x.abs().pow(p))
    # the root has no finite derivative at 0
    above = sums > 0
    return torch.where(above, torch.where(above, sums, torch.ones_like(sums)).pow(1.0 / p), torch.zeros_like(sums))


def _spatial(x: Tensor) -> tuple[int, ...]:
    return tuple(range(2, x.dim()))


def _global_lp_pool(attributes: Attributes, x: Tensor) -> Tensor:
    if x.dim() < 3:
        return x.abs()
    norm: Tensor = torch.linalg.vector_norm(x, attributes.get("p", 2), dim=_spatial(x), keepdim=True)
    return norm


# Normalizations, as they are computed at inference.

_EPSILON = 1e-5
# What MeanVarianceNormalization adds to the deviation.
_MVN_EPSILON = 1e-9


def _batch_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """With frozen statistics: they get no gradient."""
    epsilon = attributes.get("epsilon", _EPSILON)
    wide = x if x.dim() > 1 else x.reshape(-1, 1)  # a vector has one channel
    return functional.batch_norm(wide, mean.detach(), var.detach(), scale, bias, eps=epsilon).reshape(x.shape)


def _group_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    """Scale and bias by channel (opset 21) or by group (opset 18)."""
    groups, channels = attributes["num_groups"], x.shape[1]
    if len(scale) != channels:
        scale, bias = (each.repeat_interleave(channels // groups) for each in (scale, bias))
    # ``functional.group_norm`` refuses groups of one element, where the result is the bias
    return torch.group_norm(x, groups, scale, bias, attributes.get("epsilon", _EPSILON))


def _layer_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    first = attributes.get("axis", -1) % x.dim()
    normal = functional.layer_norm(x, x.shape[first:], eps=attributes.get("epsilon", _EPSILON))
    return normal * scale if bias is None else normal * scale + bias


def _rms_norm(attributes: Attributes, x: Tensor, scale: Tensor) -> Tensor:
    first = attributes.get("axis", -1) % x.dim()
    return functional.rms_norm(x, x.shape[first:], eps=attributes.get("epsilon", _EPSILON)) * scale


def _instance_norm(attributes: Attributes, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    # ``functional.instance_norm`` refuses channels of one element, where the result is the bias.
    epsilon = attributes.get("epsilon", _EPSILON)
    return torch.instance_norm(x, scale, bias, None, None, True, 0.1, epsilon, torch.backends.cudnn.enabled)


def _lp_norm(attributes: Attributes, x: Tensor) -> Tensor:
    """Along one axis; zeros stay zeros."""
    norm = torch.linalg.vector_norm(x, attributes.get("p", 2), dim=attributes.get("axis", -1), keepdim=True)
    return x / torch.where(norm == 0, torch.ones_like(norm), norm)


def _lrn(attributes: Attributes, x: Tensor) -> Tensor:
    """Across channels (Krizhevsky et al. 2012, section 3.3); onnxruntime takes odd sizes alone."""
    size = attributes["size"]
    squares = x.square().reshape(x.shape[0], 1, x.shape[1], -1)
    padded = functional.pad(squares, (0, 0, size // 2, size // 2))
    mean = functional.avg_pool2d(padded, (size, 1), stride=1).reshape(x.shape)
    base = mean * attributes.get("alpha", 1e-4) + attributes.get("bias", 1.0)
    return x / torch.pow(base, attributes.get("beta", 0.75))


def _mean_variance_norm(attributes: Attributes, x: Tensor) -> Tensor:
    axes = tuple(axis % x.dim() for axis in attributes.get("axes", (0, 2, 3)))
    centered = x - x.mean(dim=axes, keepdim=True)
    # the norm, unlike a square root, has a finite derivative at 0
    norm: Tensor = torch.linalg.vector_norm(centered, dim=axes, keepdim=True)
    count = prod(x.shape[axis] for axis in axes)
    deviation: Tensor = norm / count**0.5
    return centered / (deviation + _MVN_EPSILON)


# Reductions along axes, and what orders elements.

# Of a tensor, its axes and whether to keep them; a tensor without axes has one made for it.
_Reduce = Callable[[Tensor, tuple[int, ...], bool], Tensor]


def _over_axes(reduce: _Reduce) -> Operator:
    """The operator with axes as an attribute or as an input."""

    def compute(attributes: Attributes, x: Tensor, axes: Numbers | None = None) -> Tensor:
        given = attributes.get("axes", ()) if axes is None else whole_numbers(axes)
        if x.dim() == 0 or (not given and attributes.get("noop_with_empty_axes", 0)):
            return reduce(x.unsqueeze(-1), (-1,), False)  # every element for itself
        chosen = sorted({axis % x.dim() for axis in given}) if given else range(x.dim())
        return reduce(x, tuple(chosen), bool(attributes.get("keepdims", 1)))

    return compute


def _prod(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    for axis in reversed(axes):
        x = torch.prod(x, axis, keep, dtype=x.dtype)
    return x


def _sum(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    return torch.sum(x, axes, keep, dtype=x.dtype)


def _norm(x: Tensor, axes: tuple[int, ...], keep: bool) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(x, dim=axes, keepdim=keep)
    return norm


def _extreme(find: Callable[..., Tensor]) -> Operator:
    """ArgMax or ArgMin: index of the first of the extreme values, or of the last of them."""

    def compute(attributes: Attributes, x: Tensor) -> Tensor:
        axis, keep = attributes.get("axis", 0), bool(attributes.get("keepdims", 1))
        if not attributes.get("select_last_index", 0):
            return find(x, dim=axis, keepdim=keep)
        return x.shape[axis] - 1 - find(x.flip(axis), dim=axis, keepdim=keep)

    return compute


def _cumsum(attributes: Attributes, x: Tensor, axis: Numbers) -> Tensor:
    (along,) = whole_numbers(axis)
    ordered = x.flip(along) if attributes.get("reverse", 0) else x
    summed = torch.cumsum(ordered, along, dtype=x.dtype)
    if attributes.get("exclusive", 0):
        before = torch.zeros_like(summed.narrow(along, 0, min(1, x.shape[along])))
        summed = torch.cat([before, summed.narrow(along, 0, max(0, x.shape[along] - 1))], along)
    return summed.flip(along) if attributes.get("reverse", 0) else summed


def _top_k(attributes: Attributes, x: Tensor, k: Numbers) -> tuple[Tensor, Tensor]:
    """In order even where that is not asked for; of equal elements the first come first, which ``torch.topk`` does
    not promise.
    """
    (count,) = whole_numbers(k)
    axis, largest = attributes.get("axis", -1), bool(attributes.get("largest", 1))
    values, indices = torch.sort(x, stable=True, dim=axis, descending=largest)
    return values.narrow(axis, 0, count), indices.narrow(axis, 0, count)


COMPUTE: dict[str, Operator] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Einsum": lambda attributes, *terms: torch.einsum(attributes["equation"].replace(" ", ""), *terms),
    "Gemm": _gemm,
    "MatMul": lambda _, one, other: torch.matmul(one, other),
    "AveragePool": _average_pool,
    "GlobalAveragePool": lambda _, x: x.mean(dim=_spatial(x), keepdim=True) if x.dim() > 2 else x,
    "GlobalLpPool": _global_lp_pool,
    "GlobalMaxPool": lambda _, x: x.amax(dim=_spatial(x), keepdim=True) if x.dim() > 2 else x,
    "LpPool": _lp_pool,
    "MaxPool": _max_pool,
    "BatchNormalization": _batch_norm,
    "GroupNormalization": _group_norm,
    "InstanceNormalization": _instance_norm,
    "LRN": _lrn,
    "LayerNormalization": _layer_norm,
    "LpNormalization": _lp_norm,
    "MeanVarianceNormalization": _mean_variance_norm,
    "RMSNormalization": _rms_norm,
    "SimplifiedLayerNormalization": _rms_norm,
    "ArgMax": _extreme(torch.argmax),
    "ArgMin": _extreme(torch.argmin),
    "CumSum": _cumsum,
    "ReduceL1": _over_axes(lambda x, axes, keep: _sum(x.abs(), axes, keep)),
    "ReduceL2": _over_axes(_norm),
    "ReduceLogSum": _over_axes(lambda x, axes, keep: _sum(x, axes, keep).log()),
    "ReduceLogSumExp": _over_axes(lambda x, axes, keep: torch.logsumexp(x, axes, keep)),
    "ReduceMax": _over_axes(lambda x, axes, keep: torch.amax(x, axes, keep)),
    "ReduceMean": _over_axes(lambda x, axes, keep: torch.mean(x, axes, keep)),
    "ReduceMin": _over_axes(lambda x, axes, keep: torch.amin(x, axes, keep)),
    "ReduceProd": _over_axes(_prod),
    "ReduceSum": _over_axes(_sum),
    "ReduceSumSquare": _over_axes(lambda x, axes, keep: _sum(x.square(), axes, keep)),
    "TopK": _top_k,
}
STATIC: dict[str, frozenset[int]] = {
    "CumSum": frozenset({1}),
    "TopK": frozenset({1}),
    **{name: frozenset({1}) for name in COMPUTE if name.startswith("Reduce")},
}
