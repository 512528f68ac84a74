"""Quark's options of algorithms and of the run."""

from __future__ import annotations

from typing import Any

from service.contracts.pointers import below
from service.quark.draft import Draft, Given
from service.quark.equalization import BIAS_CORRECTION, CLE, SMOOTH_QUANT, options, switch
from service.quark.finetune import fast_finetune, preference
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

_NBITS: dict[str, tuple[Any, ...]] = {
    "Algorithm": ("DEFAULT",),
    "GroupSize": (),
    "Symmetric": (True, False),
    "Bits": (4,),
    "AccuracyLevel": (0, 1),
}


def pending(method: str) -> str:
    """The reason where an algorithm is not translated."""
    return f"the algorithm {method} is not there yet"


def _setting_of(name: str, kind: Kind, default: Any, switch: str, method: str) -> Option:
    """A setting of an algorithm: without the algorithm's own switch it has no effect, in Quark and here."""

    def apply(draft: Draft, given: Given) -> None:
        if draft.value(switch, False):
            refuse(draft, given, pending(method))
        elif given.value == default:
            draft.honour(given.pointer)
        else:
            draft.note(given.pointer, f"{name} has no effect without {switch}")

    why = f"{pending(method)}; without {switch} it has no effect"
    return Option(name, kind, default, "refused", "", why, apply)


def _matmul_nbits(draft: Draft, given: Given) -> None:
    """Int4 weights of MatMul by blocks: what MATMUL_NBITS does, with standard operators."""
    if not given.value:
        draft.honour(given.pointer)
        return
    params = draft.value("MatMulNBitsParams", {})
    at = draft.pointer("MatMulNBitsParams", "UseMatMulNBits")
    for key, value in params.items():
        allowed = _NBITS.get(key)
        if allowed is None:
            unknown(draft, key, below(at, key), _NBITS)
        elif allowed and (value not in allowed or isinstance(value, bool) != isinstance(allowed[0], bool)):
            words = " or ".join(map(str, allowed))
            draft.problem(below(at, key), f"{key} {value!r} cannot be translated: only {words}")
    symmetric = params.get("Symmetric", True) is not False
    draft.set("mode", "weights_only", given.pointer)
    draft.set("weight/dtype", "int4" if symmetric else "uint4", given.pointer)
    draft.set("weight/symmetric", symmetric, given.pointer)
    draft.set("weight/granularity", "per_block", given.pointer)
    draft.set(
        "weight/block_size", params.get("GroupSize", 128), below(at, "GroupSize") if "GroupSize" in params else at
    )
    if draft.get("include"):
        refuse(draft, given, f"{draft.origins['include']} selects already; it concerns MatMul alone")
    else:
        draft.set("include", [{"op_type": "MatMul"}], given.pointer)
    draft.honour(given.pointer)


def _nbits_params(draft: Draft, given: Given) -> None:
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
        "mode full: layer after layer on the network as corrected so far, where Quark makes one pass",
    ),
    refused("UseGPTQ", B, False, pending("gptq")),
    _setting_of("GPTQParams", D, {}, "UseGPTQ", "gptq"),
    honoured("UseMatMulNBits", B, False, "mode, weight, include", _matmul_nbits, "by DequantizeLinear, 4 bits"),
    honoured("MatMulNBitsParams", D, {}, "weight.block_size, weight.dtype", _nbits_params, "Algorithm DEFAULT, Bits 4"),
    honoured(
        "FastFinetune",
        ANY,
        {},
        "algorithms.adaround, algorithms.adaquant",
        fast_finetune,
        "key by key, see below; or DEFAULT_ADAROUND_PARAMS, DEFAULT_ADAQUANT_PARAMS by name",
    ),
    honoured("AutoMixprecision", D, {}, "algorithms.mixed_precision", auto_mixprecision, "key by key, see below"),
    honoured(
        "QuantizationPreference",
        S,
        None,
        "algorithms.adaround, algorithms.adaquant",
        preference,
        "what it says of finetuning; statistics are streamed and exact in any case, and the job chooses threads",
    ),
)

RUN_OPTIONS: tuple[Option, ...] = (
    no_effect("ExecutionProviders", L, ["CPUExecutionProvider"], "the worker that takes the job decides"),
    no_effect("TmpDir", S, None, "every job has a folder of its own"),
    refused("UserCustomOpLibPath", S, None, "libraries of custom operators are never loaded"),
    refused("CryptoMode", B, False, "models are not encrypted"),
    refused("EncryptionAlgorithm", S, None, "models are not encrypted"),
    no_effect("DebugMode", B, False, "the report has figures for every node in any case"),
    no_effect("PrintSummary", B, True, "the report has the summary"),
    no_effect("IgnoreWarnings", B, True, "what is worth a warning is noted with the job"),
    no_effect("EvalMetrics", B, False, "float and quantized model are compared in any case"),
    refused("EvalDataReader", ANY, None, "name an evaluation dataset instead"),
)
