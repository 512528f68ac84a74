"""Translates Quark's QuantizationConfig with its extra_options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.contracts.base import below
from service.quark.draft import BAD_VALUE, Given, QuarkDraft
from service.quark.finish import choose_target, finish
from service.quark.option import admit, unknown
from service.quark.registry import FIELD_ALIASES, FIELD_OPTIONS, FIELDS, OPTION_ALIASES, OPTIONS, option_of
from service.quark.structure import exclude
from service.quark.values import (
    CALIBRATE_METHODS,
    CALIBRATIONS,
    FORMATS,
    QUANT_TYPES,
    known,
    looked_up,
    quant_type,
)

_EXTRA = "extra_options"


def translate_legacy(draft: QuarkDraft, document: Mapping[str, Any]) -> None:
    """Translate ``document`` into ``draft``; what cannot be translated becomes problems of the draft."""
    read_fields(draft, document)
    _base(draft)
    apply_all(draft)
    if "include_cle" not in draft.given:
        draft.note(
            draft.root,
            "include_cle is not given: Quark 0.13 equalizes weights across layers by default; here this is "
            "done only if it is true",
        )
    finish(draft)


def read_fields(draft: QuarkDraft, document: Mapping[str, Any]) -> None:
    """Enter the fields of a QuantizationConfig into the draft."""
    for key, value in document.items():
        at = below(draft.root, key)
        name = FIELD_OPTIONS.get(key) or FIELD_ALIASES.get(key, key)
        if key == _EXTRA:
            read_options(draft, value, at)
        elif key in FIELDS or name != key:
            _admit(draft, name, value, at)
        else:
            instead = f"it belongs in {_EXTRA}" if key in OPTIONS else ""
            unknown(draft, key, at, [*FIELDS, *FIELD_OPTIONS, _EXTRA], instead)


def read_options(draft: QuarkDraft, options: Any, at: str, *, skip: frozenset[str] = frozenset()) -> None:
    """Enter extra options into the draft."""
    if options is None:
        draft.honour(at)
        return
    if not isinstance(options, dict):
        draft.problem(at, f"{_EXTRA} must be an object", BAD_VALUE)
        return
    for key, value in options.items():
        name = OPTION_ALIASES.get(key, key)
        if name in OPTIONS:
            _admit(draft, name, value, below(at, key))
        elif key not in skip:
            field = key in FIELDS or key in FIELD_OPTIONS
            unknown(draft, key, below(at, key), OPTIONS, f"it belongs next to {_EXTRA}, not in it" if field else "")


def apply_all(draft: QuarkDraft) -> None:
    """Have every given key do its work, in the order of the registries."""
    for name in (*FIELDS, *OPTIONS):
        option = option_of(name)
        if option is not None and name in draft.given:
            option.apply(draft, draft.given[name])


def _admit(draft: QuarkDraft, name: str, value: Any, pointer: str) -> None:
    option = option_of(name)
    if option is None:  # pragma: no cover - the registries hold every canonical name
        raise LookupError(name)
    admit(draft, option, Given(name, value, pointer))


def _base(draft: QuarkDraft) -> None:
    """What everything else builds on: types, scales and calibration methods, format, mode, target."""
    method, scale = _word(draft, "calibrate_method", CALIBRATE_METHODS, "CalibrationMethod.MinMax")
    ours, draft.extended = _word(draft, "quant_format", FORMATS, "QuantFormat.QDQ")
    weight_method = method if scale == "power_of_two" else "minmax"
    for side, of_side in (("activation", method), ("weight", weight_method)):
        draft.set(f"{side}/dtype", _type(draft, f"{side}_type"), draft.pointer(f"{side}_type"))
        draft.set(f"{side}/scale", scale, draft.pointer("calibrate_method"))
        draft.set(f"{side}/calibration", dict(CALIBRATIONS[of_side]), draft.pointer("calibrate_method"))
    draft.set("format", ours, draft.pointer("quant_format"))
    draft.set("weight/granularity", "per_tensor", draft.pointer("per_channel"))
    choose_target(draft, npu_cnn=False)
    signed = not str(draft.get("weight/dtype")).startswith("u")
    # Symmetric unless something else is said: signed weights, and whatever runs on the NPU for CNNs.
    draft.set("weight/symmetric", signed, draft.pointer("weight_type"))
    draft.set("activation/symmetric", draft.target == "amd_npu_cnn", draft.pointer("EnableNPUCnn"))
    if draft.value("use_dynamic_quant", False):
        _dynamic(draft)
    translate_excludes(draft)


def _dynamic(draft: QuarkDraft) -> None:
    """Ranges at run time: onnxruntime knows asymmetric uint8 activations only, whatever activation_type says."""
    at = draft.pointer("use_dynamic_quant")
    draft.set("mode", "dynamic", at)
    draft.set("activation/dtype", "uint8", at)
    if "activation_type" in draft.given and quant_type(draft.value("activation_type")) != "uint8":
        draft.note(draft.pointer("activation_type"), "activations are uint8 with use_dynamic_quant, as in Quark")


def translate_excludes(draft: QuarkDraft) -> None:
    """Translate the nodes and sub-graphs to exclude."""
    for name in ("nodes_to_exclude", "subgraphs_to_exclude"):
        if name in draft.given:
            given = draft.given[name]
            exclude(draft, given.value, given.pointer, subgraphs=name == "subgraphs_to_exclude")


def _word(draft: QuarkDraft, name: str, table: dict[str, Any], default: str) -> Any:
    found = looked_up(draft, name, draft.value(name, default), table, draft.pointer(name))
    return table[default] if found is None else found


def _type(draft: QuarkDraft, name: str) -> str:
    text = draft.value(name, "QuantType.QInt8")
    found = quant_type(text)
    if found is None:
        draft.problem(draft.pointer(name), f"unknown {name} {text!r}; known: {known(QUANT_TYPES)}", BAD_VALUE)
    return found or "int8"
