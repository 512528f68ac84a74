"""Quark's options for algorithms and for the run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.contracts.base import below
from service.quark.draft import Given, QuarkDraft, QuarkStep
from service.quark.equalization import BIAS_CORRECTION, CLE, SMOOTH_QUANT, options, switch
from service.quark.finetune import FINETUNINGS, fast_finetune, preference
from service.quark.mixed import auto_mixprecision
from service.quark.option import (
    ANY,
    B,
    D,
    I,
    Kind,
    L,
    Option,
    S,
    honoured,
    no_effect,
    refuse,
    refused,
    unknown,
)

# What Quark's MatMulNBitsParams may hold, and what becomes of each algorithm here.
_NBITS = ("Algorithm", "GroupSize", "Symmetric", "Bits", "AccuracyLevel")
_NBITS_DTYPES = {(4, True): "int4", (4, False): "uint4", (8, True): "int8", (8, False): "uint8"}
_NBITS_ALGORITHMS = ("DEFAULT", "RTN", "HQQ", "GPTQ")
_NBITS_WORDS = ", ".join(_NBITS_ALGORITHMS)
_HIGHEST_LEVEL, _SMALLEST_GROUP, _LARGEST_GROUP = 4, 16, 65536


def pending(method: str) -> str:
    """The reason where an algorithm is not translated."""
    return f"the algorithm {method} is not supported yet"


def _setting_of(name: str, kind: Kind, default: Any, switch: str, method: str) -> Option:
    """A setting of an algorithm: without the algorithm's own switch it has no effect, in Quark and here."""

    def apply(draft: QuarkDraft, given: Given) -> None:
        if draft.value(switch, False):
            refuse(draft, given, pending(method))
        else:
            draft.idle(given, default, f"has no effect without {switch}")

    why = f"{pending(method)}; without {switch} it has no effect"
    return Option(name, kind, default, "refused", "", why, apply)


def _matmul_nbits(draft: QuarkDraft, given: Given) -> None:
    """Weights of MatMul by blocks, written as com.microsoft.MatMulNBits: what MATMUL_NBITS does."""
    if not given.value:
        draft.honour(given.pointer)
        return
    params = draft.value("MatMulNBitsParams", {})
    at = draft.pointer("MatMulNBitsParams", "UseMatMulNBits")
    for key in params:
        if key not in _NBITS:
            unknown(draft, key, below(at, key), _NBITS)

    def read(key: str, default: Any, fits: Callable[[Any], bool], words: str) -> tuple[Any, str]:
        """The value of a key, or the default where it does not fit, and where it stands."""
        place = below(at, key) if key in params else given.pointer
        value = params.get(key, default)
        if type(value) is type(default) and fits(value):
            return value, place
        draft.problem(place, f"{key} {value!r} cannot be translated: only {words}")
        return default, place

    def is_group(size: int) -> bool:
        return _SMALLEST_GROUP <= size <= _LARGEST_GROUP and size & (size - 1) == 0

    bits, bits_at = read("Bits", 4, lambda value: value in (4, 8), "4 or 8")
    symmetric, symmetric_at = read("Symmetric", True, lambda _: True, "true or false")
    size, size_at = read("GroupSize", 128, is_group, "powers of two from 16 to 65536")
    level, level_at = read("AccuracyLevel", 0, lambda value: 0 <= value <= _HIGHEST_LEVEL, "0 to 4")
    algorithm, algorithm_at = read("Algorithm", "DEFAULT", lambda name: name in _NBITS_ALGORITHMS, _NBITS_WORDS)
    draft.set("mode", "weights_only", given.pointer)
    draft.set("weight/dtype", _NBITS_DTYPES[bits, symmetric], bits_at if symmetric else symmetric_at)
    draft.set("weight/symmetric", symmetric, symmetric_at)
    draft.set("weight/granularity", "per_block", given.pointer)
    draft.set("weight/block_size", size, size_at)
    draft.set("weight/kernel", "matmul_nbits", given.pointer)
    draft.set("weight/accuracy_level", level, level_at)
    _nbits_algorithm(draft, algorithm, algorithm_at)
    if draft.get("include"):
        refuse(
            draft,
            given,
            f"nodes are already selected by {draft.origins['include']}; this option applies to MatMul only",
        )
    else:
        draft.set("include", [{"op_type": "MatMul"}], given.pointer)
    draft.honour(given.pointer)


def _nbits_algorithm(draft: QuarkDraft, name: str, at: str) -> None:
    """How integers of weights are found: as Quark does, or by what is nearest to that here."""
    found = "mse" if name == "HQQ" else "minmax"
    draft.set("weight/calibration", {"method": found}, at)
    if name == "HQQ":
        draft.note(
            at,
            "Algorithm HQQ: translated to weight.calibration mse, which minimizes the squared error of the "
            "weights and needs no data",
        )
    if name != "GPTQ":
        return
    taken = next((method for method in FINETUNINGS if method in draft.steps), None)
    if taken is not None:
        draft.problem(at, f"Algorithm GPTQ: {taken}, at {draft.steps[taken].pointer}, already determines the integers")
        return
    draft.steps["adaround"] = QuarkStep({"solver": "moments"}, at)
    draft.note(
        at,
        "Algorithm GPTQ: translated to adaround with solver moments, which has the same objective and uses "
        "all calibration samples",
    )


def _nbits_params(draft: QuarkDraft, given: Given) -> None:
    if draft.value("UseMatMulNBits", False):
        draft.honour(given.pointer)
    else:
        draft.note(given.pointer, "MatMulNBitsParams has no effect without UseMatMulNBits")


ALGORITHM_OPTIONS: tuple[Option, ...] = (
    *options(SMOOTH_QUANT),
    *options(CLE),
    _setting_of("RMatrixDim", I, 4096, "include_rotation", "rotation"),
    _setting_of("UseRandomHad", B, False, "include_rotation", "rotation"),
    _setting_of("RConfigPath", S, None, "include_rotation", "rotation"),
    honoured(
        "BiasCorrection",
        B,
        False,
        "algorithms.bias_correction",
        switch(BIAS_CORRECTION),
        "mode full: corrects layer by layer on the already corrected network; Quark makes a single pass",
    ),
    refused("UseGPTQ", B, False, pending("gptq")),
    _setting_of("GPTQParams", D, {}, "UseGPTQ", "gptq"),
    honoured("UseMatMulNBits", B, False, "mode, weight, include", _matmul_nbits, "as com.microsoft.MatMulNBits"),
    honoured(
        "MatMulNBitsParams",
        D,
        {},
        "weight, algorithms.adaround",
        _nbits_params,
        "Bits 4 or 8; Algorithm DEFAULT (or RTN): minmax; HQQ: mse; GPTQ: adaround with solver moments",
    ),
    honoured(
        "FastFinetune",
        ANY,
        {},
        "algorithms.adaround, algorithms.adaquant",
        fast_finetune,
        "per key, see below; or DEFAULT_ADAROUND_PARAMS, DEFAULT_ADAQUANT_PARAMS by name",
    ),
    honoured("AutoMixprecision", D, {}, "algorithms.mixed_precision", auto_mixprecision, "per key, see below"),
    honoured(
        "QuantizationPreference",
        S,
        None,
        "algorithms.adaround, algorithms.adaquant",
        preference,
        "only its settings for finetuning; statistics are always streamed and exact, and the job chooses the threads",
    ),
)

RUN_OPTIONS: tuple[Option, ...] = (
    no_effect("ExecutionProviders", L, ["CPUExecutionProvider"], "determined by the worker that runs the job"),
    no_effect("TmpDir", S, None, "every job has its own folder"),
    refused("UserCustomOpLibPath", S, None, "custom operator libraries are never loaded"),
    refused("CryptoMode", B, False, "models are not encrypted"),
    refused("EncryptionAlgorithm", S, None, "models are not encrypted"),
    no_effect("DebugMode", B, False, "the report always has figures for every node"),
    no_effect("PrintSummary", B, True, "the summary is in the report"),
    no_effect("IgnoreWarnings", B, True, "warnings are always part of the job"),
    no_effect("EvalMetrics", B, False, "float and quantized model are always compared"),
    refused("EvalDataReader", ANY, None, "specify an evaluation dataset instead"),
)
