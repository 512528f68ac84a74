"""Quark's options of numbers: biases, scales, float and block types."""

from __future__ import annotations

from typing import Any

from service.contracts.base import below
from service.quark.draft import BAD_VALUE, Given, QuarkDraft
from service.quark.option import B, D, Option, done, honoured, no_effect, refuse, refused, unknown

_BFP_DEFAULTS: dict[str, Any] = {
    "bfp_method": "to_bfp",
    "axis": 1,
    "bit_width": 16,
    "block_size": 8,
    "rounding_mode": 2,
}
_MICRO_DEFAULTS: dict[str, Any] = {
    "bfp_method": "to_bfp_prime",
    "axis": 1,
    "bit_width": 13,
    "block_size": 16,
    "sub_block_size": 2,
    "sub_block_shift_bits": 1,
    "rounding_mode": 2,
}
_MX_DEFAULTS: dict[str, Any] = {"element_dtype": "int8", "axis": 1, "block_size": 32, "rounding_mode": 2}
_BFP_FORMATS = {16: "bfp16"}
_MICRO_FORMATS = {11: "mx4", 13: "mx6", 16: "mx9"}
_MX_FORMATS = {
    "fp8_e5m2": "mxfp8_e5m2",
    "fp8_e4m3": "mxfp8_e4m3",
    "fp6_e3m2": "mxfp6_e3m2",
    "fp6_e2m3": "mxfp6_e2m3",
    "fp4_e2m1": "mxfp4_e2m1",
    "int8": "mxint8",
}
_FAMILIES = {
    "bfp": ("bfp", *_BFP_FORMATS.values(), *_MICRO_FORMATS.values()),
    "mx": ("mx", *_MX_FORMATS.values()),
}
_SCALED = "float16 and bfloat16 tensors are rounded as they are, without a scale"
_WIDENED = "a float16 model is computed on in float32, and scales are float32"


def _scale(scale: str) -> Any:
    def apply(draft: QuarkDraft, given: Given) -> None:
        if given.value:
            for side in ("activation", "weight"):
                draft.set(f"{side}/scale", scale, given.pointer)
        draft.honour(given.pointer)

    return apply


def _power_of_two(draft: QuarkDraft, given: Given) -> None:
    if not given.value:
        for side in ("activation", "weight"):
            if draft.get(f"{side}/scale") == "power_of_two":
                draft.set(f"{side}/scale", "float32", given.pointer)
            if draft.get(f"{side}/calibration/method") == "non_overflow":
                draft.set(f"{side}/calibration", {"method": "minmax"}, given.pointer)
    draft.honour(given.pointer)


def _block_attributes(draft: QuarkDraft, given: Given, defaults: dict[str, Any]) -> bool:
    """True if the attributes are those of a format that there is: all but the deciding key at their defaults."""
    good = True
    for key, value in given.value.items():
        at = below(given.pointer, key)
        if key not in defaults:
            unknown(draft, key, at, defaults)
            good = False
        elif key not in ("bit_width", "element_dtype") and (value != defaults[key] or isinstance(value, bool)):
            draft.problem(at, f"{key} {value!r} cannot be translated: it is always {defaults[key]!r}")
            good = False
    return good


def _bfp(draft: QuarkDraft, given: Given) -> None:
    micro = given.value.get("bfp_method", "to_bfp") == "to_bfp_prime"
    defaults, formats = (_MICRO_DEFAULTS, _MICRO_FORMATS) if micro else (_BFP_DEFAULTS, _BFP_FORMATS)
    if _block_attributes(draft, given, defaults):
        _resolve(draft, given, "bfp", formats, "bit_width", given.value.get("bit_width", defaults["bit_width"]))


def _mx(draft: QuarkDraft, given: Given) -> None:
    if _block_attributes(draft, given, _MX_DEFAULTS):
        _resolve(draft, given, "mx", _MX_FORMATS, "element_dtype", given.value.get("element_dtype", "int8"))


def _resolve(draft: QuarkDraft, given: Given, family: str, formats: dict[Any, str], key: str, value: Any) -> None:
    """Give the tensors of ``family`` the type that ``key`` of the attributes tells."""
    dtype = formats.get(value) if isinstance(value, int | str) else None
    if dtype is None:
        words = ", ".join(map(str, formats))
        draft.problem(below(given.pointer, key), f"{key} {value!r} cannot be translated; known: {words}")
        return
    concerned = [side for side in ("activation", "weight") if draft.get(f"{side}/dtype") in _FAMILIES[family]]
    for side in concerned:
        if draft.get(f"{side}/dtype") not in (family, dtype):
            found = draft.get(f"{side}/dtype")
            draft.problem(given.pointer, f"{given.name} describe {dtype}, the {side} type is {found}", BAD_VALUE)
            return
        draft.set(f"{side}/dtype", dtype, given.pointer)
    if concerned:
        draft.honour(given.pointer)
    else:
        draft.note(given.pointer, f"{given.name} has no effect: no tensor is of type Q{family.upper()}")


def _follows(draft: QuarkDraft, given: Given) -> None:
    if given.value:
        draft.honour(given.pointer)
    else:
        refuse(draft, given, "the scale of an int32 bias is always that of the input times that of the weight")


NUMERIC_OPTIONS: tuple[Option, ...] = (
    honoured("Int16Scale", B, False, "activation.scale, weight.scale", _scale("int16")),
    honoured("UsePowerOf2Scale", B, True, "activation.scale, weight.scale", _power_of_two),
    honoured("BFPAttributes", D, None, "activation.dtype, weight.dtype", _bfp, "those of BFP16, MX4, MX6 and MX9"),
    honoured("MXAttributes", D, None, "activation.dtype, weight.dtype", _mx, "axis 1, block_size 32, rounding_mode 2"),
    honoured("QuantizeBias", B, True, "bias.dtype", done, "beside float and block types biases stay float32"),
    honoured("Int32Bias", B, None, "bias.dtype", done, "false: int8, or int16 beside 16-bit weights"),
    honoured("Int16Bias", B, False, "bias.dtype", done, "on a grid of its own; Quark clips the int32 values"),
    Option("AdjustBiasScale", B, True, "honoured", "", "true only: scales of int32 biases always fit", _follows),
    no_effect("AdjustWeightScaleForInt32Bias", B, False, "a weight's scale is raised wherever its bias would overflow"),
    no_effect("UseUnsignedReLU", B, False, "Quark reads it and makes no use of it"),
    no_effect("QuantizeFP16", B, None, _WIDENED),
    no_effect("UseFP32Scale", B, None, _WIDENED),
    refused("ActivationScaled", B, False, _SCALED),
    refused("WeightScaled", B, False, _SCALED),
    refused("BF16WithClip", B, False, "values beyond bfloat16's range are not clipped by a node of their own"),
    no_effect("BF16QDQToCast", B, False, "bfloat16 is rounded by standard operators in any case, never by custom ones"),
    refused("EnableVaimlBF16", B, False, "there is no target for the VAIML compiler"),
    refused("RefineBlockAxis", B, True, "blocks always lie along the axis that a layer sums over"),
)
