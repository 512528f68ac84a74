"""Translates Quark's automatic mixed precision: the older dict AutoMixprecision, and AutoMixprecisionConfig."""

from __future__ import annotations

import re
from typing import Any, get_args

from service.contracts.algorithms.precision import DistanceGoal
from service.contracts.base import below
from service.contracts.metrics.base import NAME_PATTERN
from service.contracts.presets.own import MIXED_GOAL, MIXED_GOAL_NOTE
from service.contracts.specs import is_integer
from service.quark.draft import BAD_VALUE, Given, QuarkDraft, QuarkStep
from service.quark.option import ANY, B, BadValueError, F, I, L, S, Setting, choice, read_class, unknown
from service.quark.option import idle_setting as _off
from service.quark.option import refused_setting as _no
from service.quark.option import setting as _on
from service.quark.structure import selector_of
from service.quark.tensors import read_layer, read_tensor
from service.quark.values import QUANT_TYPES, known, quant_type

MIXED = "mixed_precision"
_OPTION, _SWITCH, _LAYERS = "AutoMixprecision", "include_auto_mp", "target_layer_config"
_OPS = ["Conv", "ConvTranspose", "Gemm", "MatMul"]
_DISTANCES = get_args(DistanceGoal.model_fields["metric"].annotation)
_MOST_SAMPLES = 4096
_L2_NOTE = "l2 is relative here, ||x - x~|| / ||x||; in Quark it is not divided by ||x||"


def _dtype(draft: QuarkDraft, value: Any, pointer: str) -> str:
    found = quant_type(value)
    if found is None and isinstance(value, dict | str):
        tensor = read_tensor(draft, value, pointer)
        return "int8" if tensor is None else tensor.dtype
    if found is None or found in ("bfp", "mx"):
        raise BadValueError(f"must be one of {known(QUANT_TYPES)} except QBFP and QMX, not {value!r}")
    return found


def _function(draft: QuarkDraft, value: Any, pointer: str) -> str:
    if not isinstance(value, str) or re.fullmatch(NAME_PATTERN, value) is None:
        raise BadValueError("must be the name of a Python function that quantmill.quark provides")
    return value


def _samples(draft: QuarkDraft, value: int, pointer: str) -> int | None:
    if value > _MOST_SAMPLES:
        draft.note(pointer, f"at most {_MOST_SAMPLES} samples are used to rank layers")
    return min(value, _MOST_SAMPLES) or None


def _selectors(draft: QuarkDraft, value: list[Any], pointer: str) -> list[dict[str, Any]]:
    found = [selector_of(draft, name, below(pointer, k)) for k, name in enumerate(value)]
    return [selector for selector in found if selector is not None]


def _op_types(draft: QuarkDraft, value: list[Any], pointer: str) -> list[dict[str, Any]]:
    strange = [name for name in value if name not in _OPS]
    if strange:
        raise BadValueError(f"must be among {', '.join(_OPS)}, not {strange[0]!r}")
    return [] if sorted(value) == _OPS else [{"op_type": name} for name in value]


_optimize = choice(("speed", "quality"), "must be speed or quality")
_metric = choice(_DISTANCES, f"must be one of {', '.join(_DISTANCES)}")
_BY_NAME = "layers are chosen by their effect on the output; name them in include_layers or exclude_layers"
_LOSS = "loss of top-1 between 0 and 1: with a function in its unit, otherwise multiplied by 100, in points of top1"

# What has no key in the dict is of AutoMixprecisionConfig alone, what has no field of the dict.
MIXED_SETTINGS: tuple[Setting, ...] = (
    _on("ActTargetQuantType", "act_target_quant_type", ANY, None, "low.activation", "a type or a spec", convert=_dtype),
    _on("WeightTargetQuantType", "weight_target_quant_type", ANY, None, "low.weight", "likewise", convert=_dtype),
    _off("BiasTargetQuantType", "bias_target_quant_type", ANY, None, "bias.dtype determines the biases at both levels"),
    _on("OutputIndex", "output_index", I, 0, "output_index", "of a distance, or of the values passed to a function"),
    _on("L2Target", "l2_target", F, None, "goal.l2", _L2_NOTE),
    _on("Top1AccTarget", "top1_acc_target", F, None, "goal.top1", _LOSS),
    _on("EvaluateFunction", "evaluate_function", S, None, "goal.function", "in Python only", convert=_function),
    _on(
        "DataSize", "data_size", I, 0, "sensitivity_samples", "0: determined by the number of layers", convert=_samples
    ),
    _on("TargetOpType", "target_op_type", L, _OPS, "include", convert=_op_types),
    _no(
        "DualQuantNodes", "dual_quant_nodes", B, False, "a tensor has the same representation for all nodes that use it"
    ),
    _off("NoInputQDQShared", "no_input_qdq_shared", B, False, "layers that share a tensor change together"),
    _no("NumTarget", "num_target", I, 0, _BY_NAME),
    _no("TargetTensors", "target_tensors", L, [], _BY_NAME),
    _no("TargetIndices", "target_indices", L, [], _BY_NAME),
    _no("ExcludeIndices", "exclude_indices", L, [], _BY_NAME),
    _no(
        "AutoMixUseFastFT",
        "auto_mix_use_fast_ft",
        B,
        False,
        "finetuning is applied to the mixed model: include_fast_ft",
    ),
    _on("", "include_layers", L, [], "include", convert=_selectors),
    _on("", "exclude_layers", L, [], "exclude", convert=_selectors),
    _on("", "metric_output_index", I, 0, "output_index"),
    _on(
        "",
        "metric_threshold",
        F,
        0,
        "goal.threshold",
        "0 lowers every layer in Quark; here an SQNR of 25 dB is maintained",
    ),
    _on("", "metric_default", S, "l2", "goal.metric", _L2_NOTE, convert=_metric),
    _on("", "metric_evaluate_fn", S, None, "goal.function", "in Python only", convert=_function),
    _on("", "metric_distance_fn", S, None, "goal.distance", "in Python only", convert=_function),
    _on("", "metric_optimize_object", S, "speed", "optimize", convert=_optimize),
    _no("", "sensitivity_cache_file", S, None, "the service caches measurements automatically"),
    _no("", "subgraph_json", S, None, "layers that share a tensor change together, others individually"),
    _off("", "worker_num", I, 1, "the job chooses the threads"),
    _off("", "shared_param_mode", S, "propagate", "layers that share a weight change together"),
)
_BY_OPTION = {setting.option: setting for setting in MIXED_SETTINGS if setting.option}


def include_auto_mp(draft: QuarkDraft, given: Given) -> None:
    """Apply the switch: the mix is made as AutoMixprecision says, or not at all."""
    draft.honour(given.pointer)
    if not given.value:
        draft.steps.pop(MIXED, None)
    elif MIXED not in draft.steps:
        draft.steps[MIXED] = QuarkStep({}, given.pointer)


def auto_mixprecision(draft: QuarkDraft, given: Given) -> None:
    """Apply the dict AutoMixprecision, key by key."""
    draft.honour(given.pointer)
    if MIXED not in draft.steps:
        if given.value:
            draft.note(given.pointer, f"{_OPTION} has no effect without {_SWITCH}")
        return
    for key, value in given.value.items():
        at = below(given.pointer, key)
        if key in _BY_OPTION:
            _BY_OPTION[key].apply(draft, MIXED, key, value, at)
        else:
            unknown(draft, key, at, _BY_OPTION)


def ask_for_mixing(draft: QuarkDraft, entry: dict[str, Any], at: str) -> None:
    """Have the mix made as an AutoMixprecisionConfig asks for it."""
    step = draft.steps[MIXED] = QuarkStep({}, at)
    layers = entry.get(_LAYERS)
    if isinstance(layers, dict):
        tensors = read_layer(draft, layers, below(at, _LAYERS))
        for key, side in (("input_tensors", "activation"), ("weight", "weight")):
            if key in tensors:
                step.settings[f"low.{side}"] = tensors[key].dtype
                step.origins[f"low.{side}"] = tensors[key].pointer
    elif layers is not None:
        draft.problem(
            below(at, _LAYERS),
            f"{_LAYERS} must be a single layer config: a layer has two levels, high and low",
            BAD_VALUE,
        )
    read_class(draft, MIXED, MIXED_SETTINGS, {key: value for key, value in entry.items() if key != _LAYERS}, at)


def finish_mixed(draft: QuarkDraft) -> None:
    """Make levels and goal of what was asked for, now that the types of all other tensors are settled."""
    step = draft.steps.get(MIXED)
    if step is None:
        return
    asked = {key: step.settings.pop(key) for key in list(step.settings) if "." in key}
    if _levels(draft, step, asked):
        _goal(draft, step, asked)


def _levels(draft: QuarkDraft, step: QuarkStep, asked: dict[str, Any]) -> bool:
    """Set high and low; False, with a problem, if nothing says what they are."""
    targets = {side: asked[f"low.{side}"] for side in ("activation", "weight") if f"low.{side}" in asked}
    if not targets:
        if "low" not in step.settings:
            told = "ActTargetQuantType and WeightTargetQuantType, or target_layer_config"
            draft.problem(step.pointer, f"mixed precision requires the other types: {told}", BAD_VALUE)
        return "low" in step.settings
    base = {side: draft.config[side] for side in ("activation", "weight")}
    other = {side: _with_type(spec, targets[side]) if side in targets else dict(spec) for side, spec in base.items()}
    own = {side: dict(spec) for side, spec in base.items()}
    quality = step.settings.get("optimize") == "quality"
    step.settings |= {"high": other, "low": own} if quality else {"high": own, "low": other}
    for side in targets:
        step.origins[f"{'high' if quality else 'low'}/{side}"] = step.origins[f"low.{side}"]
    return True


def _with_type(spec: dict[str, Any], dtype: str) -> dict[str, Any]:
    if is_integer(dtype) and is_integer(str(spec["dtype"])):
        return {**spec, "dtype": dtype}
    return {"dtype": dtype}


def _goal(draft: QuarkDraft, step: QuarkStep, asked: dict[str, Any]) -> None:
    at = {key: step.origins[key] for key in asked}
    function, distance = asked.get("goal.function"), asked.get("goal.distance")
    limits = [key for key in ("goal.top1", "goal.l2", "goal.threshold") if asked.get(key) is not None]
    if len(limits) > 1 or (function is not None and distance is not None):
        draft.problem(step.pointer, "mixed precision supports one goal; omit the others", BAD_VALUE)
    elif not limits and (function is not None or distance is not None):
        told = "a function requires Top1AccTarget or metric_threshold: the acceptable loss"
        draft.problem(at["goal.function" if function is not None else "goal.distance"], told, BAD_VALUE)
    elif not limits or asked.get("goal.threshold") == 0:
        if "goal" not in step.settings:
            step.settings["goal"] = dict(MIXED_GOAL)
            draft.note(at.get("goal.threshold", step.pointer), MIXED_GOAL_NOTE)
    else:
        step.origins["goal"] = at[limits[0]]
        _goal_of(draft, step, limits[0].removeprefix("goal."), asked)


def _goal_of(draft: QuarkDraft, step: QuarkStep, word: str, asked: dict[str, Any]) -> None:
    limit, function = asked[f"goal.{word}"], asked.get("goal.function") or asked.get("goal.distance")
    if function is not None and word != "l2":
        key = "goal.function" if "goal.function" in asked else "goal.distance"
        _declare(draft, step, function, step.origins[key], against_float=key == "goal.distance")
        step.settings["goal"] = {"kind": "drop", "metric": function, "max_drop": limit}
    elif word == "top1":
        step.settings["goal"] = {"kind": "drop", "metric": "top1", "max_drop": 100 * limit}
        draft.note(
            step.origins["goal"],
            f"without EvaluateFunction, top1 is measured on the labels of the dataset ({100 * limit:g} "
            "points); without labels, as top-1 agreement with the float model",
        )
    else:
        _distance(draft, step, "l2" if word == "l2" else asked.get("goal.metric", "l2"), limit)


def _distance(draft: QuarkDraft, step: QuarkStep, metric: str, limit: float) -> None:
    """Quark's distances are smaller for the nearer: it takes sqnr and psnr with a minus, cosine from 1."""
    ours = {"sqnr": -limit, "psnr": -limit, "cosine": 1.0 - limit}.get(metric, limit)
    step.settings["goal"] = {"kind": "distance", "metric": metric, "limit": ours}
    if metric == "l2":
        draft.note(step.origins["goal"], _L2_NOTE)


def _declare(draft: QuarkDraft, step: QuarkStep, name: str, pointer: str, *, against_float: bool) -> None:
    """The function as a metric of the evaluation, which the goal names."""
    output = step.settings.get("output_index", 0)
    metric: dict[str, Any] = {"kind": "function", "name": name, "output": output}
    if against_float:
        metric |= {"against_float": True, "better": "lower"}
    draft.set("evaluation/metrics", [metric], pointer)
    draft.origins["evaluation/metrics/0"] = pointer
