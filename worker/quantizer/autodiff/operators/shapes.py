"""What moves elements without changing them: reshaping, slicing, padding, and elements found or placed by index."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor
from torch.nn import functional

from worker.quantizer.autodiff.operators.forms import Attributes, Numbers, Operator, whole_numbers


def _reshape(attributes: Attributes, x: Tensor, shape: Numbers) -> Tensor:
    """A 0 keeps the length of its axis, unless ``allowzero`` takes it at its word."""
    wanted = list(whole_numbers(shape))
    if not attributes.get("allowzero", 0):
        wanted = [x.shape[axis] if length == 0 else length for axis, length in enumerate(wanted)]
    elif 0 in wanted and -1 in wanted:  # any length would do: the runtime takes no account of empty axes
        wanted[wanted.index(-1)] = prod(filter(None, x.shape)) // prod(length for length in wanted if length > 0)
    return x.reshape(wanted)


def _flatten(attributes: Attributes, x: Tensor) -> Tensor:
    axis = attributes.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(prod(x.shape[:axis]), prod(x.shape[axis:]))


def _squeeze(_: Attributes, x: Tensor, axes: Numbers | None = None) -> Tensor:
    given = () if axes is None else whole_numbers(axes)
    return x.squeeze(given) if given else x.squeeze()


def _unsqueeze(_: Attributes, x: Tensor, axes: Numbers) -> Tensor:
    given = whole_numbers(axes)
    for axis in sorted(axis % (x.dim() + len(given)) for axis in given):
        x = x.unsqueeze(axis)
    return x


def _split(attributes: Attributes, x: Tensor, sizes: Numbers | None = None) -> tuple[Tensor, ...]:
    """By sizes, or into ``num_outputs`` parts, the last of which may be smaller."""
    axis = attributes.get("axis", 0)
    if sizes is not None:
        return torch.split(x, list(whole_numbers(sizes)), axis)
    count, length = attributes["num_outputs"], x.shape[axis]
    part = -(-length // count)
    return torch.split(x, [max(0, min(part, length - k * part)) for k in range(count)], axis)


def _slice(
    _: Attributes,
    x: Tensor,
    starts: Numbers,
    ends: Numbers,
    axes: Numbers | None = None,
    steps: Numbers | None = None,
) -> Tensor:
    first, last = whole_numbers(starts), whole_numbers(ends)
    along = range(len(first)) if axes is None else whole_numbers(axes)
    by = [1] * len(first) if steps is None else whole_numbers(steps)
    for axis, start, end, step in zip(along, first, last, by, strict=True):
        x = _sliced(x, axis % x.dim(), start, end, step)
    return x


def _sliced(x: Tensor, axis: int, start: int, end: int, step: int) -> Tensor:
    length = x.shape[axis]
    start, end = (at + length if at < 0 else at for at in (start, end))
    before = (slice(None),) * axis
    if step > 0:
        return x[(*before, slice(max(0, start), max(0, end), step))]
    # torch has no negative steps: the axis is turned round
    start, end = max(0, min(start, length - 1)), max(-1, min(end, length - 1))
    return x.flip(axis)[(*before, slice(length - 1 - start, length - 1 - end, -step))]


def _expand(_: Attributes, x: Tensor, shape: Numbers) -> Tensor:
    wanted = (1,) * (x.dim() - len(whole_numbers(shape))) + whole_numbers(shape)
    lengths = (1,) * (len(wanted) - x.dim()) + tuple(x.shape)
    return x.expand([n if size == 1 else size for n, size in zip(lengths, wanted, strict=True)])


def _pad(
    attributes: Attributes, x: Tensor, pads: Numbers, value: Tensor | None = None, axes: Numbers | None = None
) -> Tensor:
    """Negative numbers cut."""
    given = whole_numbers(pads)
    along = range(x.dim()) if axes is None else whole_numbers(axes)
    around = {axis % x.dim(): (given[k], given[k + len(given) // 2]) for k, axis in enumerate(along)}
    mode = attributes.get("mode", "constant")
    if mode == "constant":
        flat = [n for axis in reversed(range(x.dim())) for n in around.get(axis, (0, 0))]
        return functional.pad(x, flat, value=0.0 if value is None else value.item())
    for axis, (before, after) in around.items():
        x = _cut(x, axis, before, after)
        if before > 0 or after > 0:
            x = x.index_select(axis, _padding_index(x, axis, max(0, before), max(0, after), mode))
    return x


def _cut(x: Tensor, axis: int, before: int, after: int) -> Tensor:
    begin, end = max(0, -before), max(0, -after)
    return x.narrow(axis, begin, x.shape[axis] - begin - end) if begin or end else x


def _padding_index(x: Tensor, axis: int, before: int, after: int, mode: str) -> Tensor:
    """Where the elements of the padded axis come from."""
    length = x.shape[axis]
    index = torch.arange(-before, length + after, device=x.device)
    if mode == "edge":
        return index.clamp(0, length - 1)
    if mode == "wrap":
        return index % length
    period = max(1, 2 * (length - 1))
    index = index % period
    return torch.minimum(index, period - index) if length > 1 else torch.zeros_like(index)


def _depth_to_space(attributes: Attributes, x: Tensor) -> Tensor:
    size, (samples, channels, height, width) = attributes["blocksize"], x.shape
    kept = channels // size**2
    if attributes.get("mode", "DCR") == "CRD":
        parts = x.reshape(samples, kept, size, size, height, width).permute(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(samples, size, size, kept, height, width).permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(samples, kept, height * size, width * size)


def _space_to_depth(attributes: Attributes, x: Tensor) -> Tensor:
    size, (samples, channels, height, width) = attributes["blocksize"], x.shape
    parts = x.reshape(samples, channels, height // size, size, width // size, size).permute(0, 3, 5, 1, 2, 4)
    return parts.reshape(samples, channels * size**2, height // size, width // size)


def _trilu(attributes: Attributes, x: Tensor, diagonal: Numbers | None = None) -> Tensor:
    (k,) = (0,) if diagonal is None else whole_numbers(diagonal)
    return torch.triu(x, k) if attributes.get("upper", 1) else torch.tril(x, k)


# Elements found and placed by index; negative indices count from the end.

# Reductions of the scattering operators by torch's names.
_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _from_start(indices: Tensor, length: int | Tensor) -> Tensor:
    """Indices as int64, none of them negative."""
    wide = indices.long()
    return torch.where(wide < 0, wide + length, wide)


def _gather(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.get("axis", 0) % x.dim()
    index = _from_start(indices, x.shape[axis])
    if axis == 0 and x.dim() == 2 and x.is_floating_point():
        return functional.embedding(index, x)  # its gradient is the same every time on a GPU, too
    taken = x.index_select(axis, index.reshape(-1))
    return taken.reshape([*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]])


def _gather_elements(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    axis = attributes.get("axis", 0) % x.dim()
    return torch.gather(x, axis, _from_start(indices, x.shape[axis]))


def _gather_nd(attributes: Attributes, x: Tensor, indices: Tensor) -> Tensor:
    batch = attributes.get("batch_dims", 0)
    depth = indices.shape[-1]
    flat = _flat_index(indices, tuple(x.shape[batch : batch + depth]))
    rest = tuple(x.shape[batch + depth :])
    samples, places = prod(x.shape[:batch]), prod(x.shape[batch : batch + depth])
    first = torch.arange(samples, device=x.device).reshape([*x.shape[:batch], *[1] * (flat.dim() - batch)]) * places
    rows = x.reshape(samples * places, *rest)
    return rows.index_select(0, (flat + first).reshape(-1)).reshape([*flat.shape, *rest])


def _flat_index(indices: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Tuples of indices, along the last axis, into axes of these sizes as one index into all of them."""
    flat = torch.zeros(indices.shape[:-1], dtype=torch.int64, device=indices.device)
    for k, size in enumerate(sizes):
        flat = flat * size + _from_start(indices[..., k], size)
    return flat


def _scatter_nd(attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth = indices.shape[-1]
    places = prod(x.shape[:depth])
    index = _flat_index(indices, tuple(x.shape[:depth])).reshape(-1, 1)
    rows, new = x.reshape(places, -1), updates.reshape(len(index), -1)
    return _scattered(rows, 0, index.expand(new.shape), new, attributes.get("reduction", "none")).reshape(x.shape)


def _scatter_elements(attributes: Attributes, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = attributes.get("axis", 0) % x.dim()
    index = _from_start(indices, x.shape[axis])
    return _scattered(x, axis, index, updates, attributes.get("reduction", "none"))


def _scattered(x: Tensor, axis: int, index: Tensor, updates: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return torch.scatter(x, axis, index, updates)
    if reduction == "add":
        return torch.scatter_add(x, axis, index, updates)
    return torch.scatter_reduce(x, axis, index, updates, _REDUCTIONS[reduction])


def _one_hot(attributes: Attributes, indices: Tensor, depth: Numbers, values: Tensor) -> Tensor:
    """``values``: off and on. An index beyond the depth has none on."""
    (count,) = whole_numbers(depth)
    axis = attributes.get("axis", -1)
    axis = axis + indices.dim() + 1 if axis < 0 else axis
    classes = torch.arange(count, device=indices.device).reshape(-1, *[1] * (indices.dim() - axis))
    return torch.where(_from_start(indices, count).unsqueeze(axis) == classes, values[1], values[0])


COMPUTE: dict[str, Operator] = {
    "Concat": lambda attributes, *parts: torch.cat(parts, attributes["axis"]),
    "DepthToSpace": _depth_to_space,
    "Expand": _expand,
    "Flatten": _flatten,
    "Pad": _pad,
    "Reshape": _reshape,
    "Slice": _slice,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": lambda _, x, repeats: x.repeat(whole_numbers(repeats)),
    "Transpose": lambda attributes, x: x.permute(attributes.get("perm", tuple(reversed(range(x.dim()))))),
    "Trilu": _trilu,
    "Unsqueeze": _unsqueeze,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "NonZero": lambda _, x: torch.nonzero(x.reshape(1) if x.dim() == 0 else x).T,
    "OneHot": _one_hot,
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
}
STATIC: dict[str, frozenset[int]] = {
    "Expand": frozenset({1}),
    "Pad": frozenset({1, 3}),
    "Reshape": frozenset({1}),
    "Slice": frozenset({1, 2, 3, 4}),
    "Split": frozenset({1}),
    "Squeeze": frozenset({1}),
    "Tile": frozenset({1}),
    "Trilu": frozenset({1}),
    "Unsqueeze": frozenset({1}),
    "OneHot": frozenset({1}),
}
