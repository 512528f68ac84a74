"""Final steps after all keys are read: biases, block types, and NPU requirements."""

from __future__ import annotations

from typing import Any

from service.contracts.specs import bits_of, is_integer, needs_calibration
from service.quark.draft import BAD_VALUE, QuarkDraft
from service.quark.finetune import choose_solver
from service.quark.mixed import finish_mixed
from service.quark.npu import NPU_CNN

_SIDES = ("activation", "weight")
BIAS_KEYS = ("QuantizeBias", "Int32Bias", "Int16Bias")
NPU_PREPARATION = ("batch_norm_to_conv", "reduce_mean_to_global_average_pool", "split_large_pooling", "split_to_slice")


def choose_target(draft: QuarkDraft, *, npu_cnn: bool) -> None:
    """Set the target from the NPU switches, with the preparation that is on by default for NPUs.

    ``npu_cnn`` holds where EnableNPUCnn is not given.
    """
    cnn, transformer = draft.value("EnableNPUCnn", npu_cnn), draft.value("enable_npu_transformer", False)
    if cnn and transformer:
        at = draft.pointer("enable_npu_transformer")
        draft.problem(at, "enable_npu_cnn and enable_npu_transformer are mutually exclusive", BAD_VALUE)
    if cnn or transformer:
        at = draft.pointer("EnableNPUCnn" if cnn else "enable_npu_transformer")
        draft.set("target", NPU_CNN if cnn else "amd_npu_transformer", at)
        for name in NPU_PREPARATION:
            draft.set(f"preparation/{name}", True, at)


def finish(draft: QuarkDraft) -> None:
    """Complete the config, or add the problems that stand against it."""
    for side in _SIDES:
        _finish_type(draft, side)
    finish_mixed(draft)
    choose_solver(draft)
    draft.write_algorithms()
    if "bias" not in draft.config:
        _choose_bias(draft)
    elif any(name in draft.given for name in BIAS_KEYS):
        at = draft.pointer(*BIAS_KEYS)
        draft.problem(at, "the spec of biases already determines their representation", BAD_VALUE)
    if draft.target == NPU_CNN:
        _check_npu(draft)


def _finish_type(draft: QuarkDraft, side: str) -> None:
    dtype = draft.get(f"{side}/dtype")
    at = draft.pointer(f"{side}_type")
    if dtype in ("bfp", "mx"):
        if not any(problem.pointer.split("/")[-1] in ("BFPAttributes", "MXAttributes") for problem in draft.problems):
            draft.problem(
                at, f"Q{dtype.upper()} requires {dtype.upper()}Attributes in extra_options, which specify the format"
            )
    elif dtype in ("int32", "uint32") or (side == "activation" and dtype in ("int4", "uint4")):
        draft.problem(at, f"{dtype} cannot be translated as the type of {side}s")
    elif not is_integer(str(dtype)):
        _settle_float(draft, side, str(dtype))


def _settle_float(draft: QuarkDraft, side: str, dtype: str) -> None:
    """Float and block types have no zero point, and most of them no scale to calibrate."""
    spec: dict[str, Any] = draft.config[side]
    calibrated = spec["calibration"]["method"] != "minmax" and not needs_calibration(dtype)
    if spec["scale"] != "float32" or calibrated:
        draft.note(draft.origins.get(f"{side}/calibration", draft.root), f"{dtype} does not support this calibration")
        spec["calibration"] = {"method": "minmax"}
    spec["scale"] = "float32"


def _choose_bias(draft: QuarkDraft) -> None:
    """The bias's type from QuantizeBias, Int32Bias and Int16Bias."""
    weight = str(draft.get("weight/dtype"))
    mode = draft.config.get("mode", "static")
    if mode != "static" or not is_integer(weight) or not is_integer(str(draft.get("activation/dtype"))):
        for name in BIAS_KEYS:
            if draft.value(name, False):
                why = "biases stay float32 unless activations and weights are integers"
                draft.problem(draft.given[name].pointer, f"{name} cannot be translated: {why}")
        draft.set("bias/dtype", "float32", draft.pointer(*BIAS_KEYS))
    elif not draft.value("QuantizeBias", True):
        draft.set("bias/dtype", "float32", draft.pointer("QuantizeBias"))
    elif draft.value("Int16Bias", False):
        draft.set("bias/dtype", "int16", draft.pointer("Int16Bias"))
    elif draft.value("Int32Bias", draft.target != NPU_CNN):
        draft.set("bias/dtype", "int32", draft.pointer("Int32Bias"))
        if draft.target == NPU_CNN:  # whose own rule would make them int8
            draft.set("target_options/int8_bias", False, draft.pointer("Int32Bias"))
    else:
        draft.set("bias/dtype", "int16" if bits_of(weight) == 16 else "int8", draft.pointer("Int32Bias"))


def _check_npu(draft: QuarkDraft) -> None:
    """The NPU's demands; Quark ignores its switch or leaves the tensor out where they are not met."""
    demands: tuple[tuple[str, str, Any, str], ...] = (
        ("activation", "scale", "power_of_two", "requires a power-of-two calibration such as PowerOfTwoMethod.MinMSE"),
        ("weight", "scale", "power_of_two", "requires a power-of-two calibration such as PowerOfTwoMethod.MinMSE"),
        ("weight", "dtype", "int8", "requires QInt8 weights"),
        ("weight", "granularity", "per_tensor", "supports one scale per weight only: no per_channel"),
        ("weight", "symmetric", True, "requires symmetric weights"),
        ("activation", "symmetric", True, "requires symmetric activations"),
    )
    told: set[str] = set()
    for side, field, wanted, words in demands:
        if draft.get(f"{side}/{field}") != wanted and words not in told:
            told.add(words)
            at = draft.origins.get(f"{side}/{field}", draft.root)
            if at in (draft.root, draft.pointer("calibrate_method")):  # the switch does not fit the calibration
                at = draft.pointer("EnableNPUCnn")
            draft.problem(at, f"the AMD NPU for CNNs {words}", BAD_VALUE)
    if draft.get("weight/reduce_range"):
        draft.problem(draft.pointer("reduce_range"), "the AMD NPU for CNNs does not support reduce_range", BAD_VALUE)
