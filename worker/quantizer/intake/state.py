"""New weights for a graph that is known: initializers are replaced by name, and nothing else is touched.

A state holds what ``safetensors.torch.save_file(module.state_dict(), path)`` writes: tensors under the names that
PyTorch knows them by. An exporter that says which initializers are of the state marks them (``STATE_NAMES``); of a
graph without any such mark, every float initializer is a parameter.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from service.contracts.base import below
from service.contracts.errors import DatasetError, FieldProblem, StateError
from worker.quantizer.data.array_files import looks_like_safetensors, read_safetensors
from worker.quantizer.data.stored import Array, StoredArray

# Metadata of an initializer: the names of its tensor in a state_dict, as a JSON list; several are one tensor's.
STATE_NAMES = "quantmill.state"
# Metadata of an initializer: "true" if it is the transposed matrix of the state's.
STATE_TRANSPOSED = "quantmill.state.transposed"
# What BatchNorm counts in training; no graph uses it.
UNUSED_COUNTER = "num_batches_tracked"

_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE})
_MOST_FAULTS = 100
_FILE = "/files/0"
_HINT = (
    "Names are PyTorch's: save module.state_dict() of the module that the graph was exported from, of the same sizes, "
    "by safetensors.torch.save_file. A graph that quantmill.torch.export wrote says which tensors it needs."
)


@dataclass(frozen=True)
class _Parameter:
    """An initializer that a state fills."""

    value: ir.Value  # of the graph
    names: tuple[str, ...]  # by which a state may call it
    transposed: bool  # the graph holds the transposed matrix

    @property
    def dtype(self) -> ir.DataType:
        assert self.value.const_value is not None  # noqa: S101 - it is an initializer
        return self.value.const_value.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """As the state has to have it."""
        assert self.value.const_value is not None  # noqa: S101 - it is an initializer
        found = tuple(int(length) for length in self.value.const_value.shape.numpy())
        return found[::-1] if self.transposed else found


class _RefusedTensorError(Exception):
    """One tensor cannot be used; told together with the others."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def apply_state(model: ir.Model, state: Path) -> None:
    """Replace the parameters of ``model`` by the tensors of a .safetensors file, in place.

    Shapes have to be equal; float types are converted as long as no value becomes infinite, all others have to be
    equal. A non-finite value may stand only where the model has one too (masks).

    Args:
        model: as uploaded; changed only if the whole state fits.
        state: hostile input.

    Raises:
        StateError: the file cannot be read, or tensors are missing, unknown, of another shape or type, out of range or
            not finite; one problem for each, at /state/NAME.
    """
    arrays = _read(state)
    parameters = _parameters(model, arrays)
    faults: list[FieldProblem] = []
    filled: list[tuple[ir.Value, Array]] = []
    for parameter in parameters:
        given = [name for name in parameter.names if name in arrays]
        if not given:
            faults.append(
                _fault(parameter.names[0], "tensor-missing", f"is missing; the graph has {_words(parameter)}")
            )
            continue
        try:
            values = _converted(parameter, arrays[given[0]])
            faults += [
                _fault(other, "tensor-tied", f"differs from {given[0]!r}, which is the same tensor")
                for other in given[1:]
                if not np.array_equal(_converted(parameter, arrays[other]), values, equal_nan=True)
            ]
            filled.append((parameter.value, values))
        except _RefusedTensorError as refusal:
            faults.append(_fault(given[0], refusal.code, str(refusal)))
    known = {name for parameter in parameters for name in parameter.names}
    for name, array in arrays.items():
        if name not in known and not _is_counter(array):
            faults.append(_fault(name, "tensor-extra", "is none of the graph's parameters"))
    if faults:
        raise _refusal(faults)
    for value, values in filled:
        assert value.const_value is not None  # noqa: S101 - it is an initializer
        value.const_value = ir.Tensor(values, dtype=value.const_value.dtype, name=value.name)


def _read(state: Path) -> dict[str, StoredArray]:
    with state.open("rb") as stream:
        head = stream.read(9)
    if not looks_like_safetensors(head, state.stat().st_size):
        raise StateError(
            f"{state.name} is not a .safetensors file",
            pointer=_FILE,
            hint="Write it by safetensors.torch.save_file(module.state_dict(), path).",
        )
    try:
        return read_safetensors(state)
    except DatasetError as error:
        raise StateError(f"{state.name}: {error.detail}", pointer=_FILE, hint=error.hint) from None


def _parameters(model: ir.Model, arrays: Mapping[str, StoredArray]) -> list[_Parameter]:
    initializers = (value for graph in (model.graph, *model.graph.subgraphs()) for value in graph.initializers.values())
    values = [value for value in initializers if value.const_value is not None]
    marked = [value for value in values if STATE_NAMES in value.metadata_props]
    if marked:
        return [_Parameter(value, _marked_names(value), _is_transposed(value)) for value in marked]
    return [
        _Parameter(value, (value.name or "",), _is_transposed(value))
        for value in values
        if value.const_value is not None and (value.const_value.dtype in _FLOATS or value.name in arrays)
    ]


def _marked_names(value: ir.Value) -> tuple[str, ...]:
    try:
        names = json.loads(value.metadata_props[STATE_NAMES])
    except (ValueError, RecursionError):
        names = None
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise StateError(
            (f"initializer {value.name!r} of the skeleton has metadata {STATE_NAMES} that is not a list of names"),
            pointer="/skeleton_model_id",
            hint="Export the skeleton again by quantmill.torch.export.",
        )
    return tuple(names)


def _is_transposed(value: ir.Value) -> bool:
    rank = 0 if value.const_value is None else len(value.const_value.shape)
    return value.metadata_props.get(STATE_TRANSPOSED) == "true" and rank == 2


def _converted(parameter: _Parameter, array: StoredArray) -> Array:
    """The state's tensor as the graph is to hold it.

    Raises:
        _RefusedTensorError: it does not fit.
    """
    if array.refusal is not None:
        raise _RefusedTensorError("tensor-dtype", array.refusal)
    if array.shape != parameter.shape:
        raise _RefusedTensorError("tensor-shape", f"has shape {list(array.shape)}; the graph has {_words(parameter)}")
    wanted = parameter.dtype.numpy()
    floats = parameter.dtype in _FLOATS and array.dtype in {dtype.numpy() for dtype in _FLOATS}
    if array.dtype != wanted and not floats:
        raise _RefusedTensorError("tensor-dtype", f"is {array.dtype.name}; the graph has {_words(parameter)}")
    try:
        values = _values(array)
    except DatasetError as error:
        raise _RefusedTensorError("tensor-data", error.detail) from None
    if not floats:
        return np.ascontiguousarray(values.T) if parameter.transposed else values
    values = values.T if parameter.transposed else values
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(values.astype(wanted))
    _check_finite(parameter, values, converted)
    return converted


def _check_finite(parameter: _Parameter, values: Array, converted: Array) -> None:
    assert parameter.value.const_value is not None  # noqa: S101 - it is an initializer
    odd = ~np.isfinite(converted)
    if not odd.any():
        return
    overflown = odd & np.isfinite(values)
    if overflown.any():
        at = _first(overflown)
        raise _RefusedTensorError(
            "tensor-range",
            f"contains {values[tuple(at)]:g} at {at}, which {parameter.dtype.numpy().name} cannot represent",
        )
    odd &= np.isfinite(parameter.value.const_value.numpy())
    if odd.any():
        raise _RefusedTensorError("tensor-not-finite", f"contains NaN or Inf, first at {_first(odd)}")


def _first(places: Array) -> list[int]:
    return [int(k) for k in np.unravel_index(int(np.argmax(places)), places.shape)]


def _values(array: StoredArray) -> Array:
    with closing(array.open()) as reader:
        return reader.read(array.shape[0] if array.shape else 1).reshape(array.shape)


def _is_counter(array: StoredArray) -> bool:
    return (
        array.name.rpartition(".")[2] == UNUSED_COUNTER
        and array.shape == ()
        and array.refusal is None
        and array.dtype.kind in "iu"
    )


def _words(parameter: _Parameter) -> str:
    return f"{parameter.dtype.numpy().name}{list(parameter.shape)}"


def _fault(name: str, code: str, message: str) -> FieldProblem:
    return FieldProblem(pointer=below("/state", name), code=code, message=f"tensor {name!r} {message}")


def _refusal(faults: list[FieldProblem]) -> StateError:
    told = "; ".join(fault.message for fault in faults[:5])
    rest = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
    return StateError(
        f"the state does not fit the graph: {told}{rest}", errors=tuple(faults[:_MOST_FAULTS]), hint=_HINT
    )
