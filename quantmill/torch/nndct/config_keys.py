"""What Vitis AI's config file says of a kind of tensor, written into a spec of ours."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from service.contracts.errors import FieldProblem, InvalidConfigError

DPU = "amd_npu_cnn"
FLOATS = ("bfloat16", "float16", "float32")

_BITS = (4, 8, 16)


@dataclass
class NndctRecipe:
    """A config of ours in the making.

    Attributes:
        settings: changed key by key.
        target_given: ``torch_quantizer`` was told a target, which the file must not contradict.
        notes: what is done in another way than in Vitis AI.
        problems: what cannot be done.
        beyond_dpu: pointers of keys that the DPU cannot do, and what they ask for.
    """

    settings: dict[str, Any]
    target_given: bool = False
    notes: list[str] = field(default_factory=list)
    problems: list[FieldProblem] = field(default_factory=list)
    beyond_dpu: list[tuple[str, str]] = field(default_factory=list)

    def refuse(self, at: str, message: str) -> None:
        """Enter a problem with the key at JSON pointer ``at``."""
        self.problems.append(FieldProblem(pointer=at, code="not-translated", message=message))

    def note(self, text: str) -> None:
        """Enter a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    def is_one_of(self, known: Collection[str], value: Any, at: str) -> bool:
        """True if ``value`` is known to the key at ``at``; else that is a problem."""
        if value in known:
            return True
        told = (" or " if len(known) == 2 else ", ").join(known)
        self.refuse(at, f"{at.rpartition('/')[2]} {value!r} is not known; {told}")
        return False

    def is_switch(self, value: Any, at: str) -> bool:
        """True if ``value`` is true or false, as the key at ``at`` must be; else that is a problem."""
        if not isinstance(value, bool):
            self.refuse(at, f"{at.rpartition('/')[2]} is true or false, not {value!r}")
        return isinstance(value, bool)

    def set_bits(self, bits: Any, at: str) -> None:
        """Give weights and activations ``bits``."""
        for part in ("weight", "activation"):
            set_bits(self, self.settings[part], bits, at, part)

    def switch(self, method: str, wanted: bool) -> None:
        """Leave an algorithm in or out."""
        if not wanted:
            self.settings["algorithms"] = [a for a in self.settings["algorithms"] if a["method"] != method]

    def check(self) -> None:
        """Raise what was entered.

        Raises:
            InvalidConfigError: one problem per key.
        """
        if self.settings["target"] == DPU:
            for at, what in self.beyond_dpu:
                self.refuse(
                    at, f"{what}: the DPU computes with symmetric int8 and a power-of-two scale per tensor alone"
                )
        if self.problems:
            told = "; ".join(f"{problem.pointer}: {problem.message}" for problem in self.problems[:5])
            hint = "Leave the keys out, or set target_device CPU or GPU for what only the DPU lacks."
            raise InvalidConfigError(told, errors=tuple(self.problems), hint=hint)


# What each key of a tensor does: (recipe, spec of ours, value, pointer, "weight" or "activation").


def _datatype(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if value in ("bfloat16", "float16"):
        for key in ("symmetric", "scale", "calibration"):
            spec.pop(key, None)
        spec.update(dtype=value, calibration={"method": "minmax"}, scale="float32")
        recipe.beyond_dpu.append((at, f"datatype {value}"))
    elif value == "float32" and at.startswith("/layer_quantize_config"):
        spec["dtype"] = "float32"
    elif value != "int":
        recipe.refuse(at, f"datatype {value!r} is not known; int, bfloat16, float16, or float32 for single layers")


def set_bits(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    """Give the tensors of ``spec`` so many bits."""
    if value not in _BITS or isinstance(value, bool):
        recipe.refuse(at, f"{part}s have {' or '.join(map(str, _BITS))} bits, not {value!r}")
        return
    if str(spec["dtype"]) in FLOATS:
        return
    spec["dtype"] = f"{'u' if str(spec['dtype']).startswith('u') else ''}int{value}"
    if value != 8:
        recipe.beyond_dpu.append((at, f"{value} bits"))


def _method(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    known = {"diffs": "mse", "mse": "mse", "maxmin": "minmax", "entropy": "entropy", "percentile": "percentile"}
    if not recipe.is_one_of(known, value, at):
        return
    if value == "entropy" and part == "weight":
        recipe.refuse(at, "weights are not calibrated by entropy; diffs, mse, maxmin or percentile")
    else:
        spec["calibration"] = {"method": known[value]}


def _percentage(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        recipe.refuse(at, f"percentage is a number, not {value!r}")


def _rounding(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if recipe.is_one_of(("half_even", "half_up", "half_down", "std_round"), value, at) and value != "half_even":
        recipe.note(f"round_mode {value}: halves go to the even neighbour, as QuantizeLinear of ONNX rounds")


def _symmetry(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if not recipe.is_one_of(("symmetric", "asymmetric"), value, at):
        return
    spec["symmetric"] = value == "symmetric"
    if value == "asymmetric":
        recipe.beyond_dpu.append((at, "asymmetric"))


def _per_channel(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if not recipe.is_switch(value, at):
        return
    if part == "weight":
        spec["granularity"] = "per_channel" if value else "per_tensor"
        if value:
            recipe.beyond_dpu.append((at, "per_channel"))
    elif value and "/overall_quantize_config" not in at:
        recipe.refuse(at, "activations have one scale per tensor")


def _signed(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if recipe.is_switch(value, at) and str(spec["dtype"]) not in FLOATS:
        spec["dtype"] = ("" if value else "u") + str(spec["dtype"]).removeprefix("u")
        if not value:
            recipe.beyond_dpu.append((at, "unsigned"))


def _narrow(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if not recipe.is_switch(value, at) or not value:
        return
    if part == "activation" and "/overall_quantize_config" not in at:
        recipe.refuse(at, "activations use the whole range of their type")
    else:
        recipe.note("narrow_range: weights keep to [-127, 127] where their scale is no power of two")


def _scale(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if not recipe.is_one_of(("poweroftwo", "float"), value, at):
        return
    spec["scale"] = "power_of_two" if value == "poweroftwo" else "float32"
    if value == "float":
        recipe.beyond_dpu.append((at, "scale_type float"))


def _statistic(recipe: NndctRecipe, spec: dict[str, Any], value: Any, at: str, part: str) -> None:
    if recipe.is_one_of(("modal", "mean", "median", "max"), value, at):
        recipe.note(f"calib_statistic_method {value}: scales are chosen once, on all calibration samples together")


SPEC_KEYS: dict[str, Callable[[NndctRecipe, dict[str, Any], Any, str, str], None]] = {
    "datatype": _datatype,
    "signed": _signed,
    "bit_width": set_bits,
    "method": _method,
    "percentage": _percentage,
    "round_mode": _rounding,
    "symmetry": _symmetry,
    "per_channel": _per_channel,
    "narrow_range": _narrow,
    "scale_type": _scale,
    "calib_statistic_method": _statistic,
}
