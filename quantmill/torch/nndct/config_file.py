"""Vitis AI's quant_config_file, key by key. What has no counterpart here is an error that names the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from quantmill.torch.nndct.config_keys import DPU, FLOATS, SPEC_KEYS, NndctRecipe
from service.contracts.base import below, nearest_name

Handler = Callable[[NndctRecipe, Any, str], None]

_TENSORS = ("input", "weights", "bias", "activation")
_DEVICES = {"DPU": DPU, "CPU": "onnxruntime_cpu", "GPU": "onnxruntime_gpu"}


def translate(document: Mapping[str, Any], recipe: NndctRecipe, module: nn.Module) -> None:
    """Write what a quant_config_file says into ``recipe``; what it cannot, as problems.

    Args:
        document: decoded JSON.
        recipe: changed in place.
        module: whose layers ``layer_quantize_config`` names.
    """
    for key, value in document.items():
        handler = _KEYS.get(key)
        if handler is not None:
            handler(recipe, value, below("", key))
        elif key not in _LATER:
            _unknown(recipe, key, (*_KEYS, *_LATER), "")
    for scope, at in _scopes(document, "", recipe):
        _common(recipe, recipe.settings, scope, at)
    layers = document.get("layer_quantize_config", [])
    if not isinstance(layers, list):
        recipe.refuse("/layer_quantize_config", "it is a list of objects")
        return
    for place, layer in enumerate(layers):
        _layer(recipe, layer, f"/layer_quantize_config/{place}", module)


def _scopes(document: Mapping[str, Any], at: str, recipe: NndctRecipe) -> list[tuple[dict[str, dict[str, Any]], str]]:
    """What is said of all tensors, then of each kind: kind -> keys, with the pointer of the keys."""
    overall = _object(document.get("overall_quantize_config", {}), f"{at}/overall_quantize_config", recipe)
    of_tensors = _object(document.get("tensor_quantize_config", {}), f"{at}/tensor_quantize_config", recipe)
    found = [(dict.fromkeys(_TENSORS, overall), f"{at}/overall_quantize_config")] if overall else []
    for kind, keys in of_tensors.items():
        where = f"{at}/tensor_quantize_config/{kind}"
        if kind not in _TENSORS:
            _unknown(recipe, kind, _TENSORS, f"{at}/tensor_quantize_config")
        else:
            found.append(({kind: _object(keys, where, recipe)}, where))
    return found


def _common(recipe: NndctRecipe, into: dict[str, Any], scope: Mapping[str, dict[str, Any]], at: str) -> None:
    """Write what is said of kinds of tensors into the specs of ``into``."""
    if "input" in scope and "activation" not in scope:
        changed = {key for key, value in scope["input"].items() if not _holds(recipe, key, value)}
        for key in sorted(changed):
            recipe.refuse(below(at, key), "the network's inputs are represented as all activations are")
    for kind, part in (("activation", "activation"), ("weights", "weight"), ("bias", "bias")):
        keys = scope.get(kind, {})
        if not keys:
            continue
        spec = into.setdefault(part, {})
        if kind == "bias":
            _bias(recipe, spec, keys, at, of_all=len(scope) > 1)
            continue
        for key, value in keys.items():
            setter = SPEC_KEYS.get(key)
            if setter is None:
                _unknown(recipe, key, SPEC_KEYS, at)
            else:
                setter(recipe, spec, value, below(at, key), part)
        if "percentage" in keys and keys.get("method") == "percentile":
            spec["calibration"] = {"method": "percentile", "percentile": keys["percentage"]}


def _holds(recipe: NndctRecipe, key: str, value: Any) -> bool:
    """True if activations are given ``value`` anyway."""
    trial = NndctRecipe({"activation": dict(recipe.settings["activation"])})
    setter = SPEC_KEYS.get(key)
    if setter is None or key == "percentage":
        return False
    setter(trial, trial.settings["activation"], value, "", "activation")
    return not trial.problems and trial.settings["activation"] == recipe.settings["activation"]


def _bias(recipe: NndctRecipe, spec: dict[str, Any], keys: Mapping[str, Any], at: str, *, of_all: bool) -> None:
    """A bias has a type; how it is rounded and scaled follows from its node."""
    datatype, bits = keys.get("datatype", "int"), keys.get("bit_width")
    if datatype in FLOATS:
        spec["dtype"] = datatype
        return
    if bits is None:
        return
    if bits not in (8, 16, 32):
        if not of_all:
            recipe.refuse(below(at, "bit_width"), f"a bias has 8, 16 or 32 bits, not {bits!r}")
    elif not of_all or recipe.settings["target"] == DPU:
        spec["dtype"] = f"int{bits}"


def _layer(recipe: NndctRecipe, layer: Any, at: str, module: nn.Module) -> None:
    layer = _object(layer, at, recipe)
    known = (
        "layer_type",
        "layer_name",
        "quantizable_data_type",
        "overall_quantize_config",
        "tensor_quantize_config",
    )
    for key in layer:
        if key not in known:
            _unknown(recipe, key, known, at)
    paths = _paths(recipe, layer, at, module)
    override: dict[str, Any] = {}
    for scope, where in _scopes(layer, at, recipe):
        for part in ("activation", "weight", "bias"):
            override.setdefault(part, dict(recipe.settings[part]))
        _common(recipe, override, scope, where)
    if any(override.get(part, {}).get("dtype") == "float32" for part in ("weight", "activation")):
        recipe.settings.setdefault("exclude", []).extend({"module": path} for path in paths)
        return
    changed = {part: spec for part, spec in override.items() if spec != recipe.settings[part]}
    data = layer.get("quantizable_data_type")
    if data is not None and "weights" not in data:
        recipe.settings.setdefault("exclude", []).extend({"module": path} for path in paths)
    elif data is not None and "bias" not in data:
        changed["bias"] = {"dtype": "float32"}
    for path in paths if changed else ():
        recipe.settings.setdefault("overrides", []).append({"match": {"module": path}, **changed})


def _paths(recipe: NndctRecipe, layer: Mapping[str, Any], at: str, module: nn.Module) -> list[str]:
    """Paths of the modules that an entry is about."""
    modules = {path: part for path, part in module.named_modules() if path}
    if ("layer_type" in layer) == ("layer_name" in layer):
        recipe.refuse(at, "name the layer by either layer_type or layer_name")
        return []
    if "layer_name" in layer:
        told = str(layer["layer_name"])
        path = ".".join(re.findall(r"\[([^\]]+)\]", told)) or told  # Net::Net/Conv2d[conv1]/input.1
        if path not in modules:
            near = nearest_name(path, modules)
            recipe.refuse(
                f"{at}/layer_name", f"no such module: {path!r}" + (f"; did you mean {near!r}?" if near else "")
            )
            return []
        return [path]
    word = str(layer["layer_type"]).rsplit(".", 1)[-1]
    found = [path for path, part in modules.items() if type(part).__name__.lower() == word.lower()]
    if not found:
        recipe.refuse(f"{at}/layer_type", f"no module is a {word}")
    return found


# What each key of the document does.


def _relu6(recipe: NndctRecipe, value: Any, at: str) -> None:
    recipe.settings.setdefault("preparation", {})["clip6_to_relu"] = bool(value)


def _only_false(what: str) -> Handler:
    def apply(recipe: NndctRecipe, value: Any, at: str) -> None:
        if value is not False:
            recipe.refuse(at, what)

    return apply


def _algorithm(method: str) -> Handler:
    def apply(recipe: NndctRecipe, value: Any, at: str) -> None:
        if not isinstance(value, bool):
            recipe.refuse(at, f"it is true or false, not {value!r}")
        else:
            recipe.switch(method, value)

    return apply


def _device(recipe: NndctRecipe, value: Any, at: str) -> None:
    if value not in _DEVICES:
        recipe.refuse(at, f"target_device {value!r} is not offered; {', '.join(_DEVICES)}")
    elif recipe.target_given and _DEVICES[value] != recipe.settings["target"]:
        recipe.refuse(at, f"target_device {value} contradicts the target {recipe.settings['target']} that was given")
    elif _DEVICES[value] != recipe.settings["target"]:
        recipe.settings.update(
            target=_DEVICES[value],
            target_options={},
            preparation={},
            bias={"dtype": "int32" if value == "CPU" else "float32"},
        )


def _opset(recipe: NndctRecipe, value: Any, at: str) -> None:
    recipe.settings.setdefault("preparation", {})["opset"] = value


def _align_concat(recipe: NndctRecipe, value: Any, at: str) -> None:
    if recipe.settings["target"] == DPU:
        recipe.settings.setdefault("target_options", {})["align_concat"] = bool(value)
    elif value:
        recipe.refuse(at, "only the DPU aligns the operands of a Concat")


def _data_types(recipe: NndctRecipe, value: Any, at: str) -> None:
    given = set(value) if isinstance(value, list) else set()
    for kind in sorted(given - set(_TENSORS)):
        recipe.refuse(at, f"{kind!r} is no kind of tensor; {', '.join(_TENSORS)}")
    if not {"input", "weights", "activation"} <= given:
        recipe.refuse(at, "input, weights and activation are quantized together; leave single layers out by name")
    elif "bias" not in given:
        recipe.settings["bias"] = {"dtype": "float32"}
        if recipe.settings["target"] == DPU:
            recipe.settings.setdefault("target_options", {})["int8_bias"] = False


_FUTURE = "Vitis AI itself has no effect for it; leave it out"
_KEYS: dict[str, Handler] = {
    "target_device": _device,
    "convert_relu6_to_relu": _relu6,
    "convert_silu_to_hswish": _only_false("SiLU stays what it is; write nn.Hardswish into the module"),
    "include_cle": _algorithm("cross_layer_equalization"),
    "include_bias_corr": _algorithm("bias_correction"),
    "keep_first_last_layer_accuracy": _only_false(_FUTURE),
    "keep_add_layer_accuracy": _only_false(_FUTURE),
    "onnx_opset_version": _opset,
    "change_concat_input_fix": _align_concat,
    "change_pool_input_fix": _only_false("the result of a pooling takes the scale of its input, never the reverse"),
    "quantizable_data_type": _data_types,
}
_LATER = ("overall_quantize_config", "tensor_quantize_config", "layer_quantize_config")


def _object(value: Any, at: str, recipe: NndctRecipe) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    recipe.refuse(at, "it is an object")
    return {}


def _unknown(recipe: NndctRecipe, key: str, known: Iterable[str], at: str) -> None:
    near = nearest_name(key, known)
    recipe.refuse(below(at, key), f"the key {key!r} is not known" + (f"; did you mean {near!r}?" if near else ""))
