"""QTensorConfig and QLayerConfig: Quark's specs of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.contracts.base import below
from service.quark.draft import BAD_VALUE, QuarkDraft
from service.quark.option import unknown
from service.quark.values import CALIB_METHODS, DATA_TYPES, GRANULARITIES, SCALE_TYPES, SPECS, known, looked_up, lookup

_LAYER_KEYS = ("input_tensors", "activation", "weight", "bias", "output_tensors")
_TENSOR_KEYS = ("symmetric", "scale_type", "calibration_method", "quant_granularity", "data_type")


@dataclass(frozen=True)
class Tensor:
    """A QTensorConfig in our words, and where it stands."""

    dtype: str
    symmetric: bool
    scale: str
    method: str
    granularity: str
    pointer: str


def read_layer(draft: QuarkDraft, layer: Any, at: str) -> dict[str, Tensor]:
    """The tensors of a QLayerConfig by key; ``activation`` is an older word for ``input_tensors``.

    What cannot be read is left out, with a problem.
    """
    if not isinstance(layer, dict):
        draft.problem(at, "must be an object with input_tensors and weight", BAD_VALUE)
        return {}
    if layer.get("activation") is not None and layer.get("input_tensors") is not None:
        draft.problem(
            below(at, "activation"), "give either input_tensors or its older name activation, not both", BAD_VALUE
        )
    tensors = {}
    for key, spec in layer.items():
        if key not in _LAYER_KEYS:
            unknown(draft, key, below(at, key), _LAYER_KEYS)
        elif spec is not None:
            tensor = read_tensor(draft, spec, below(at, key))
            if tensor is not None:
                tensors["input_tensors" if key == "activation" else key] = tensor
    return tensors


def read_tensor(draft: QuarkDraft, spec: Any, at: str) -> Tensor | None:
    """A QTensorConfig, or a spec class by name; what it leaves out is as the spec class of its data type has it."""
    name = spec if isinstance(spec, str) else f"{spec.get('data_type')}Spec" if isinstance(spec, dict) else ""
    defaults = lookup(name, SPECS)
    if defaults is None:
        where = at if not isinstance(spec, dict) else below(at, "data_type")
        draft.problem(
            where, f"unknown type of tensor; known: {known(DATA_TYPES)}, or a spec: XInt8Spec, Int8Spec ...", BAD_VALUE
        )
        return None
    fields = spec if isinstance(spec, dict) else {}
    for key in fields:
        if key not in _TENSOR_KEYS:
            unknown(draft, key, below(at, key), _TENSOR_KEYS)
    symmetric = fields.get("symmetric", defaults.symmetric)
    if not isinstance(symmetric, bool):
        draft.problem(below(at, "symmetric"), "symmetric must be a boolean", BAD_VALUE)
        symmetric = True
    granularity = _word(draft, fields, "quant_granularity", GRANULARITIES, "QuantGranularity.Tensor", at)
    if granularity == "group":
        where = below(at, "quant_granularity")
        draft.problem(where, "Group has no effect in Quark; 'weight.granularity' per_block may be what you need")
    return Tensor(
        DATA_TYPES[defaults.data_type],
        symmetric,
        _word(draft, fields, "scale_type", SCALE_TYPES, defaults.scale_type, at),
        _word(draft, fields, "calibration_method", CALIB_METHODS, defaults.method, at),
        granularity,
        at,
    )


def _word(draft: QuarkDraft, fields: Mapping[str, Any], key: str, table: dict[str, str], default: str, at: str) -> str:
    return looked_up(draft, key, fields.get(key, default), table, below(at, key)) or table[default]
