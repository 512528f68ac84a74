"""Translates Quark's fast finetuning (FastFinetune, AdaRoundConfig, AdaQuantConfig) to adaround and adaquant."""

from __future__ import annotations

import re
from typing import Any

from service.contracts.algorithms.finetune import FINETUNED_OPS
from service.contracts.base import below
from service.contracts.presets.base import DESCENT_NOTE, QUARK_SEED, finetuning_notes, legacy_defaults, qconfig_defaults
from service.quark.draft import BAD_VALUE, Given, QuarkDraft, QuarkStep
from service.quark.option import ANY, B, BadValueError, F, I, L, S, Setting, refuse, unknown
from service.quark.option import idle_setting as _off
from service.quark.option import refused_setting as _no
from service.quark.option import setting as _on

FINETUNINGS = ("adaround", "adaquant")
# The dicts of parameters that Quark's presets name, as its users import them.
DEFAULT_PARAMS: dict[str, dict[str, Any]] = {
    f"DEFAULT_{method.upper()}_PARAMS": {
        "DataSize": 1000,
        "FixedSeed": QUARK_SEED,
        "BatchSize": 2,
        "NumIterations": 1000,
        "LearningRate": rate,
        "OptimAlgorithm": method,
        "OptimDevice": "cpu",
        "InferDevice": "cpu",
        "EarlyStop": True,
    }
    for method, rate in (("adaround", 0.1), ("adaquant", 1e-5))
}
# Numbers of AdaRound's descent -> those that Quark's own defaults and presets have.
_DESCENT: dict[str, tuple[Any, ...]] = {
    "batch_size": (1, 2),
    "num_iterations": (1000,),
    "learning_rate": (0.1,),
    "lr_adjust": (None,),
    "drop_ratio": (1.0,),
    "reg_param": (0.01,),
    "beta_range": ([20, 2], [20.0, 2.0]),
    "warm_start": (0.2,),
}
_ALGORITHM = "OptimAlgorithm"
_ALL_SAMPLES = 1_000_000_000
_DEVICE = re.compile(r"(cpu|auto)|(cuda|gpu|hip|rocm)(?::(\d+)((?:,\d+)*))?")
_GRADIENT = "for solver gradient"
_CHOOSES = "for solver gradient, which is selected by a value other than Quark's default"
# QuantizationPreference -> what it sets, over what is given, as in Quark.
_PREFERENCES: dict[str, dict[str, Any]] = {
    "accuracy": {"early_stop": False, "update_bias": True, "output_qdq": True},
    "speed": {"early_stop": True, "mem_opt_level": 0},
    "resource_efficiency": {"mem_opt_level": 2},
}


def _device(draft: QuarkDraft, value: str, pointer: str) -> str:
    found = _DEVICE.fullmatch(value.strip().lower())
    if found is None:
        raise BadValueError(f"must be cpu, cuda:0, hip:0 or similar, not {value!r}")
    host, family, number, more = found.groups()
    if host:
        return str(host)
    if more:
        draft.note(pointer, f"only the first of the devices {value} is used: layers are solved on one device")
    kind = "rocm" if family in ("hip", "rocm") else "cuda"
    return f"{kind}:{number}" if number else kind


def _lr_adjust(draft: QuarkDraft, value: Any, pointer: str) -> dict[str, float] | None:
    if value in ([], False):
        return None
    numbers = isinstance(value, list) and all(isinstance(n, int | float) and not isinstance(n, bool) for n in value)
    if not numbers or len(value) != 2:
        raise BadValueError("must be [threshold, learning rate]")
    return {"threshold": value[0], "learning_rate": value[1]}


def _op_types(draft: QuarkDraft, value: list[Any], pointer: str) -> list[str]:
    for place, name in enumerate(value):
        if name not in FINETUNED_OPS:
            told = f"{name!r} is not finetuned; supported: {', '.join(FINETUNED_OPS)}"
            draft.problem(below(pointer, place), told, BAD_VALUE)
    if not value:
        raise BadValueError("must list operators; omit include_fast_ft to disable finetuning")
    return [name for name in value if name in FINETUNED_OPS]


def _beta_range(draft: QuarkDraft, value: list[Any], pointer: str) -> list[Any]:
    if len(value) != 2:
        raise BadValueError("must be [first, last]")
    return value


def _some(draft: QuarkDraft, value: int, pointer: str) -> int | None:
    return None if value >= _ALL_SAMPLES else value


_LOADING = "inputs are passed from layer to layer without data loaders"

FINETUNE_SETTINGS: tuple[Setting, ...] = (
    _on("OptimDevice", "optim_device", S, "cpu", "optim_device", "one device only; hip means rocm", convert=_device),
    _on("InferDevice", "infer_device", S, "cpu", "infer_device", "one device only; hip means rocm", convert=_device),
    _on("FixedSeed", "fixed_seed", I, QUARK_SEED, "fixed_seed"),
    _on("DataSize", "data_size", I, _ALL_SAMPLES, "data_size", "10^9 and above: all", convert=_some),
    _on("BatchSize", "batch_size", I, 1, "batch_size", _CHOOSES),
    _off(
        "NumBatches",
        "num_batches",
        I,
        1,
        "it is the window of Quark's early stopping, which is based on the regularizer",
    ),
    _on("NumIterations", "num_iterations", I, None, "num_iterations", _CHOOSES),
    _on("LearningRate", "learning_rate", F, None, "learning_rate", _CHOOSES),
    _on("EarlyStop", "early_stop", B, False, "early_stop", _GRADIENT),
    _on("LRAdjust", "lr_adjust", ANY, None, "lr_adjust", _CHOOSES, convert=_lr_adjust),
    _on("TargetOpType", "target_op_type", L, list(FINETUNED_OPS), "target_op_type", convert=_op_types),
    _on("SelectiveUpdate", "selective_update", B, False, "selective_update"),
    _on("UpdateBias", "update_bias", B, None, "update_bias", "adaquant only, as in Quark", method="adaquant"),
    _on("OutputQDQ", "output_qdq", B, False, "output_qdq", _GRADIENT),
    _on("DropRatio", "drop_ratio", F, 1.0, "drop_ratio", _CHOOSES),
    _on("MemOptLevel", "mem_opt_level", I, 1, "mem_opt_level", "default: determined by the free memory"),
    _off("CacheDir", "cache_dir", S, None, "every job has its own folder"),
    _off("LogPeriod", "log_period", I, 100, "progress is reported layer by layer"),
    _no("RefModelPath", "ref_model_path", S, None, "layers are compared with those of the job's own model"),
    _off("DynamicBatch", "dynamic_batch", B, False, "samples are always processed in batches if the model supports it"),
    _off(
        "Parallel",
        "parallel",
        B,
        False,
        "layers are processed in sequence, each with the inputs from the layers before it",
    ),
    _on("RegParam", "reg_param", F, 0.01, "reg_param", f"adaround only, {_CHOOSES}", method="adaround"),
    _on(
        "BetaRange",
        "beta_range",
        L,
        [20, 2],
        "beta_range",
        f"adaround only, {_CHOOSES}",
        convert=_beta_range,
        method="adaround",
    ),
    _on("WarmStart", "warm_start", F, 0.2, "warm_start", f"adaround only, {_CHOOSES}", method="adaround"),
    _no("SelectMaxMemLayer", "select_max_mem_layer", B, False, "layers cannot be skipped"),
    _off("NumWorkers", "num_workers", I, 1, _LOADING),
    _off("PinMemory", "pin_memory", B, False, _LOADING),
    _off("UseGDS", "use_gds", B, False, _LOADING),
    _on("OutputIndex", "output_index", I, 0, "output_index"),
)
_BY_OPTION = {setting.option: setting for setting in FINETUNE_SETTINGS}


def ask_for_class(draft: QuarkDraft, method: str, pointer: str) -> None:
    """Have adaround or adaquant run as AdaRoundConfig or AdaQuantConfig asks for it."""
    _add(draft, method, qconfig_defaults(method), pointer)


def _add(draft: QuarkDraft, method: str, defaults: dict[str, Any], pointer: str) -> None:
    draft.steps[method] = QuarkStep({key: value for key, value in defaults.items() if key != "method"}, pointer)
    for note in finetuning_notes(method):
        draft.note(pointer, note)


def include_fast_ft(draft: QuarkDraft, given: Given) -> None:
    """Apply the switch: finetuning runs, by the algorithm that FastFinetune names, or does not."""
    draft.honour(given.pointer)
    if not given.value:
        for method in FINETUNINGS:
            draft.steps.pop(method, None)
    elif not any(method in draft.steps for method in FINETUNINGS):
        method = _named(draft) or "adaround"
        _add(draft, method, legacy_defaults(method), given.pointer)


def _named(draft: QuarkDraft) -> str | None:
    """The algorithm that FastFinetune names, if it is one."""
    word = _parameters(draft.value("FastFinetune", {})).get(_ALGORITHM)
    return word.lower() if isinstance(word, str) and word.lower() in FINETUNINGS else None


def fast_finetune(draft: QuarkDraft, given: Given) -> None:
    """Apply the dict FastFinetune, key by key."""
    draft.honour(given.pointer)
    if not isinstance(given.value, dict):
        parameters = _parameters(given.value)
        if not parameters:
            told = f"FastFinetune must be an object, or one of {', '.join(DEFAULT_PARAMS)}"
            draft.problem(given.pointer, told, BAD_VALUE)
            return
        given = Given(given.name, parameters, given.pointer)
    method = _algorithm(draft, given)
    if method is None:
        if given.value:
            draft.note(given.pointer, "FastFinetune has no effect without include_fast_ft")
        return
    for key, value in given.value.items():
        at = below(given.pointer, key)
        if key in _BY_OPTION:
            _BY_OPTION[key].apply(draft, method, key, value, at)
        elif key != _ALGORITHM:
            unknown(draft, key, at, (_ALGORITHM, *_BY_OPTION))


def _parameters(value: Any) -> dict[str, Any]:
    """The dict, or that of this name; empty for anything else."""
    if isinstance(value, str):
        return DEFAULT_PARAMS.get(value.rpartition(".")[2], {})
    return value if isinstance(value, dict) else {}


def choose_solver(draft: QuarkDraft) -> None:
    """Have AdaRound descend as Quark's does where its numbers were chosen, and say so where they do not count."""
    step = draft.steps.get("adaround")
    if step is None:
        return
    given = {key: step.origins[key] for key in _DESCENT if key in step.origins}
    chosen = [key for key in given if step.settings[key] not in _DESCENT[key]]
    if chosen:
        step.settings["solver"] = "gradient"
        step.origins["solver"] = given[chosen[0]]
        draft.notes = [note for note in draft.notes if note.message != DESCENT_NOTE]
        numbers = ", ".join(f"{key} {step.settings[key]}" for key in chosen)
        draft.note(
            given[chosen[0]],
            f"{numbers}: AdaRound uses gradient descent (solver gradient), to which these values apply. "
            "With Quark's defaults, or without values, it uses coordinate descent (solver moments), which "
            "is faster and usually closer to the float model",
        )
    for key in () if chosen else given:
        draft.note(given[key], f"{key} {step.settings[key]}, Quark's default, has no effect with solver moments")


def _algorithm(draft: QuarkDraft, given: Given) -> str | None:
    """The finetuning that runs, if one does; what a preset has chosen may be changed."""
    method = next((method for method in FINETUNINGS if method in draft.steps), None)
    word, named, at = given.value.get(_ALGORITHM), _named(draft), below(given.pointer, _ALGORITHM)
    if word is None or method is None:
        return method
    draft.honour(at)
    if named is None:
        draft.problem(at, f"{_ALGORITHM} must be {' or '.join(FINETUNINGS)}, not {word!r}", BAD_VALUE)
    elif named != method and draft.steps[method].of_preset:
        del draft.steps[method]
        _add(draft, named, legacy_defaults(named), at)
        return named
    elif named != method:
        refuse(draft, Given(_ALGORITHM, word, at), f"{draft.steps[method].pointer} specifies {method}")
    return method


def preference(draft: QuarkDraft, given: Given) -> None:
    """Apply QuantizationPreference to the finetuning, if one runs."""
    chosen = _PREFERENCES.get(given.value)
    method = next((method for method in FINETUNINGS if method in draft.steps), None)
    if chosen is None:
        draft.problem(given.pointer, f"{given.name} must be {', '.join(_PREFERENCES)}", BAD_VALUE)
    elif method is None:
        draft.note(
            given.pointer, f"{given.name} has no effect without include_fast_ft: here it applies to finetuning only"
        )
    else:
        step = draft.steps[method]
        for key, value in chosen.items():
            if key != "update_bias" or method == "adaquant":
                step.settings[key] = value
                step.origins[key] = given.pointer
        draft.honour(given.pointer)
