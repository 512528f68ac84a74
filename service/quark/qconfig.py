"""Translates Quark's QConfig: tensor specs, settings by layer and operator type, algorithms, extra options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from service.contracts.base import below
from service.contracts.specs import is_integer
from service.quark.algorithms import pending
from service.quark.draft import BAD_VALUE, QuarkDraft
from service.quark.equalization import PARAMETERS, ask_for
from service.quark.finetune import FINETUNE_SETTINGS, FINETUNINGS, ask_for_class
from service.quark.finish import choose_target, finish
from service.quark.legacy import apply_all, read_options
from service.quark.mixed import MIXED, ask_for_mixing
from service.quark.option import read_class, unknown
from service.quark.registry import OPTIONS
from service.quark.structure import exclude, leave_out, selector_of
from service.quark.tensors import Tensor, read_layer
from service.quark.values import CALIBRATIONS, looked_up

_KEYS = (
    "global_config",
    "specific_layer_config",
    "layer_type_config",
    "exclude",
    "algo_config",
    "use_external_data_format",
    "extra_options",
)
# name of an AlgoConfig -> our method; gptq and quarot are not there.
ALGORITHMS = {
    "smooth_quant": "smooth_quant",
    "cle": "cross_layer_equalization",
    "bias_correction": "bias_correction",
    "gptq": "gptq",
    "auto_mixprecision": "mixed_precision",
    "adaround": "adaround",
    "adaquant": "adaquant",
    "quarot": "rotation",
}
_BIAS_TYPES = ("int32", "int16", "int8")


def translate_qconfig(draft: QuarkDraft, document: Mapping[str, Any]) -> None:
    """Translate ``document`` into ``draft``; what cannot be translated becomes problems of the draft."""
    loose = {key: value for key, value in document.items() if key in OPTIONS}
    for key in document:
        if key not in _KEYS and key not in loose:
            unknown(draft, key, below(draft.root, key), [*_KEYS, *OPTIONS])
    read_options(draft, loose, draft.root)
    read_options(draft, document.get("extra_options"), below(draft.root, "extra_options"))
    _global(draft, document.get("global_config"), below(draft.root, "global_config"))
    exclude(draft, document.get("exclude") or [], below(draft.root, "exclude"))
    _layers(draft, document.get("specific_layer_config") or [], below(draft.root, "specific_layer_config"))
    _layers(draft, document.get("layer_type_config") or [], below(draft.root, "layer_type_config"), op_types=True)
    _algorithms(draft, document.get("algo_config") or [], below(draft.root, "algo_config"))
    _external_data(draft, document)
    for key in _KEYS:
        if key in document:
            draft.honour(below(draft.root, key))
    _drop_symmetry(draft)
    apply_all(draft)
    finish(draft)


def _drop_symmetry(draft: QuarkDraft) -> None:
    """The specs say what is symmetric; Quark writes that over the extra options."""
    for name, path in (("ActivationSymmetric", "activation/symmetric"), ("WeightSymmetric", "weight/symmetric")):
        given = draft.given.pop(name, None)
        if given is not None and given.value == draft.get(path):
            draft.honour(given.pointer)
        elif given is not None:
            draft.note(given.pointer, f"{name} has no effect, as in Quark: the spec has symmetric={draft.get(path)}")


def _external_data(draft: QuarkDraft, document: Mapping[str, Any]) -> None:
    at = below(draft.root, "use_external_data_format")
    given = document.get("use_external_data_format", False)
    if not isinstance(given, bool) and given is not None:
        draft.problem(at, "must be a boolean", BAD_VALUE)
    elif given:
        draft.note(at, "use_external_data_format has no effect here: it is determined by the size of the model")


def _global(draft: QuarkDraft, layer: Any, at: str) -> None:
    tensors = read_layer(draft, layer, at)
    if isinstance(layer, dict) and not {"input_tensors", "activation"} & set(layer):
        draft.problem(at, "input_tensors is missing", BAD_VALUE)
    if isinstance(layer, dict) and "weight" not in layer:
        draft.problem(at, "weight is missing", BAD_VALUE)
    missing = Tensor("int8", True, "float32", "minmax", "per_tensor", at)
    activation, weight = tensors.get("input_tensors", missing), tensors.get("weight", missing)
    for side, tensor, method in (
        ("activation", activation, activation.method),
        ("weight", weight, _weight_method(draft, weight)),
    ):
        draft.set(f"{side}/dtype", tensor.dtype, tensor.pointer)
        draft.set(f"{side}/symmetric", tensor.symmetric, tensor.pointer)
        draft.set(f"{side}/scale", tensor.scale, tensor.pointer)
        draft.set(f"{side}/calibration", dict(CALIBRATIONS[_on_grid(method, tensor.scale)]), tensor.pointer)
    draft.set("weight/granularity", weight.granularity, weight.pointer)
    if activation.granularity != "per_tensor":
        draft.problem(
            activation.pointer,
            "activations have one scale per tensor; QuantGranularity.Channel applies to weights only",
        )
    outputs = tensors.get("output_tensors")
    if outputs is not None and (outputs.dtype, outputs.symmetric) != (activation.dtype, activation.symmetric):
        draft.problem(outputs.pointer, "output_tensors must be the same as input_tensors for all nodes")
    if "bias" in tensors:
        _set_bias(draft, tensors["bias"])
    draft.extended = not {activation.dtype, weight.dtype} <= {"int8", "uint8"}
    choose_target(draft, npu_cnn=activation.scale == weight.scale == "power_of_two")


def _weight_method(draft: QuarkDraft, weight: Tensor) -> str:
    """Weights are calibrated by MinMax or MinMSE; Quark takes MinMax, too, where a spec says anything else."""
    if weight.method not in ("minmax", "mse"):
        draft.note(
            weight.pointer,
            f"weights are calibrated by minmax, as in Quark: {weight.method} applies to activations only",
        )
    return weight.method if weight.method in ("minmax", "mse") else "minmax"


def _on_grid(method: str, scale: str) -> str:
    """MinMax with power-of-two scales is what Quark calls NonOverflow."""
    return "non_overflow" if method == "minmax" and scale == "power_of_two" else method


def _set_bias(draft: QuarkDraft, bias: Tensor) -> None:
    if bias.dtype in _BIAS_TYPES:
        draft.set("bias/dtype", bias.dtype, bias.pointer)
    else:
        draft.problem(bias.pointer, f"biases cannot be {bias.dtype}; supported: {', '.join(_BIAS_TYPES)}")


def _layers(draft: QuarkDraft, entries: Any, at: str, *, op_types: bool = False) -> None:
    """Pairs [QLayerConfig or null, names], as Quark's to_dict writes them; null leaves operator types in float."""
    if not isinstance(entries, list):
        draft.problem(at, "must be a list of pairs [layer config, names]", BAD_VALUE)
        return
    for k, entry in enumerate(entries):
        here = below(at, k)
        if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[1], list):
            draft.problem(here, "must be a pair [layer config, names]", BAD_VALUE)
            continue
        selectors = []
        for n, name in enumerate(entry[1]):
            place = below(here, 1, n)
            if not op_types:
                selectors.append(selector_of(draft, name, place))
            elif isinstance(name, str) and name:
                selectors.append({"op_type": name})
            else:
                draft.problem(place, "must be an operator type", BAD_VALUE)
        found = [selector for selector in selectors if selector is not None]
        if entry[0] is None and op_types:
            for selector in found:
                leave_out(draft, selector, here)
        else:
            _override(draft, read_layer(draft, entry[0], below(here, 0)), found, here)


def _override(draft: QuarkDraft, tensors: dict[str, Tensor], selectors: list[dict[str, Any]], at: str) -> None:
    """Other types for some nodes. Only type and symmetry count, as in Quark."""
    settings: dict[str, Any] = {}
    inputs = tensors.get("input_tensors")
    given = draft.get("activation/dtype"), draft.get("activation/symmetric")
    if inputs is not None and (inputs.dtype, inputs.symmetric) != given:
        settings["input_activation"] = _differences(inputs)
    for key, side in (("output_tensors", "activation"), ("weight", "weight")):
        if key in tensors:
            settings[side] = _differences(tensors[key])
    if "bias" in tensors and tensors["bias"].dtype not in _BIAS_TYPES:
        draft.problem(tensors["bias"].pointer, f"biases cannot be {tensors['bias'].dtype}")
    elif "bias" in tensors:
        settings["bias"] = {"dtype": tensors["bias"].dtype}
    if not settings:
        return
    chosen = draft.config.setdefault("overrides", [])
    for selector in selectors:
        draft.origins[f"overrides/{len(chosen)}"] = at
        chosen.append({"match": selector, **settings})


def _differences(tensor: Tensor) -> dict[str, Any]:
    if is_integer(tensor.dtype):
        return {"dtype": tensor.dtype, "symmetric": tensor.symmetric}
    return {"dtype": tensor.dtype, "scale": "float32", "calibration": {"method": "minmax"}}


def _algorithms(draft: QuarkDraft, entries: Any, at: str) -> None:
    if not isinstance(entries, list):
        draft.problem(at, "must be a list of algorithms", BAD_VALUE)
        return
    for k, entry in enumerate(entries):
        name = entry.get("name") if isinstance(entry, dict) else entry
        here = below(at, k)
        method = looked_up(draft, "algorithm", name, ALGORITHMS, here)
        if method is None:
            continue
        if method in draft.steps:
            draft.problem(here, f"{name} is given twice; the first is at {draft.steps[method].pointer}", BAD_VALUE)
        elif method in FINETUNINGS:
            ask_for_class(draft, method, here)
            read_class(draft, method, FINETUNE_SETTINGS, entry if isinstance(entry, dict) else {}, here)
        elif method == MIXED:
            ask_for_mixing(draft, entry if isinstance(entry, dict) else {}, here)
        elif method in PARAMETERS:
            ask_for(draft, method, here)
            read_class(draft, method, PARAMETERS[method], entry if isinstance(entry, dict) else {}, here)
        else:
            draft.problem(here, f"{name} cannot be translated: {pending(method)}")
