"""Rules that change how tensors are represented, before any number is known."""

from __future__ import annotations

from typing import Any

from service.contracts.reason import declare
from service.contracts.specs import BiasSpec, NonOverflowCalibration, bits_of, is_integer
from worker.quantizer.graph.values import node_name
from worker.quantizer.numerics.granularity import PER_TENSOR, PerAxis
from worker.quantizer.ops.linear import MATRIX_PRODUCTS
from worker.quantizer.plan.profile import RuleContext
from worker.quantizer.plan.types import ActivationPlan, Decision, Role, WeightPlan
from worker.quantizer.plan.weights import judge_biases

BIAS_FLOAT_ON_TARGET = declare("bias-float-on-target", "the target adds biases in float")


def symmetric_int8(context: RuleContext) -> list[Decision]:
    """Integer activations and weights become int8 around 0; 4-bit weights only symmetric. Other types stay."""
    why = "zero_point must be 0, and int8 is the only 8-bit integer"
    made = _activations(context, "symmetric_int8", why, dtype="int8", symmetric=True)
    for weight in context.plan.weights.values():
        if is_integer(weight.spec.dtype):
            dtype = "int4" if bits_of(weight.spec.dtype) < 8 else "int8"
            made += _weight(weight, "symmetric_int8", why, dtype=dtype, symmetric=True)
    return made


def float8_e4m3(context: RuleContext) -> list[Decision]:
    """8-bit floats become float8_e4m3fn."""
    named: list[tuple[str, ActivationPlan | WeightPlan]] = [
        *context.plan.activations.items(),
        *context.plan.weights.items(),
    ]
    made = []
    for name, entry in named:
        if entry.spec.dtype == "float8_e5m2":
            what, why = "float8_e5m2 -> float8_e4m3fn", "the target has no other 8-bit float"
            made.append(Decision("float8_e4m3", name, what, why))
            entry.spec = entry.spec.model_copy(update={"dtype": "float8_e4m3fn"})
    return made


def xint8(context: RuleContext) -> list[Decision]:
    """Integer tensors become symmetric int8 with one power-of-two scale each. Float and block types stay."""
    why = "the NPU multiplies int8 around 0 and scales by shifting"
    wanted: dict[str, Any] = {"dtype": "int8", "symmetric": True, "scale": "power_of_two", "reduce_range": False}
    made = _activations(context, "xint8", why, **wanted)
    for weight in context.plan.weights.values():
        if not is_integer(weight.spec.dtype):
            continue
        made += _weight(weight, "xint8", why, granularity="per_tensor", **wanted)
        weight.granularity = PER_TENSOR
        if context.plan.nodes[weight.node].role not in (Role.LINEAR, Role.STORED):
            # one or few values, none of which is an outlier: the nearest power of two could cut off 30 percent
            weight.spec = weight.spec.model_copy(update={"calibration": NonOverflowCalibration()})
    judge_biases(context.graph, context.plan)
    return made


def int8_bias(context: RuleContext) -> list[Decision]:
    """Biases become int8 with a grid of their own."""
    made = []
    for bias in context.plan.biases.values():
        if bias.spec.dtype != "int8":
            what = f"bias {bias.spec.dtype} -> int8"
            made.append(Decision("int8_bias", bias.node, what, "the NPU holds biases as int8"))
            bias.spec = BiasSpec(dtype="int8")
    judge_biases(context.graph, context.plan)
    return made


def float_bias(context: RuleContext) -> list[Decision]:
    """Biases stay float32, or the 16-bit floats that were asked for."""
    made = []
    for bias in context.plan.biases.values():
        if bias.reason is None and not bias.is_half:
            why = "a DequantizeLinear of int32 is refused; biases are added in float"
            made.append(Decision("float_bias", bias.node, f"bias {bias.spec.dtype} -> float32", why))
            bias.spec, bias.reason = BiasSpec(dtype="float32"), BIAS_FLOAT_ON_TARGET()
    return made


def seven_bit_weights(context: RuleContext) -> list[Decision]:
    """int8 weights keep to [-64, 64]: 255 * 64 * 2 fits into 16 bits, 255 * 127 * 2 does not."""
    why = "without VNNI the CPU adds two 8-bit products in 16 bits, which saturates"
    made = []
    for weight in context.plan.weights.values():
        in_float = context.plan.nodes[weight.node].role is Role.STORED
        if weight.spec.dtype == "int8" and not in_float:
            made += _weight(weight, "x86_without_vnni", why, reduce_range=True)
    return made


def unsigned_activations(context: RuleContext) -> list[Decision]:
    """Signed activations become unsigned ones of the same width."""
    made = []
    for entry in context.plan.activations.values():
        if entry.spec.dtype in ("int8", "int16"):
            dtype = f"u{entry.spec.dtype}"
            why = "QNN's operators take unsigned activations"
            made.append(Decision("unsigned_activations", entry.tensor, f"{entry.spec.dtype} -> {dtype}", why))
            entry.spec = entry.spec.model_copy(update={"dtype": dtype})
    return made


def per_tensor_matmul(context: RuleContext) -> list[Decision]:
    """MatMul and Gemm weights have one scale."""
    op_types = {node_name(node): node.op_type for node in context.graph}
    made = []
    for weight in context.plan.weights.values():
        if isinstance(weight.granularity, PerAxis) and op_types.get(weight.node) in MATRIX_PRODUCTS:
            why = "QNN has no MatMul with scales per channel"
            made += _weight(weight, "per_tensor_matmul", why, granularity="per_tensor")
            weight.granularity = PER_TENSOR
    return made


def _activations(context: RuleContext, rule: str, why: str, **update: Any) -> list[Decision]:
    made: list[Decision] = []
    for entry in context.plan.activations.values():
        if is_integer(entry.spec.dtype):
            made += _change(entry, entry.tensor, rule, why, **update)
    return made


def _weight(weight: WeightPlan, rule: str, why: str, **update: Any) -> list[Decision]:
    return _change(weight, weight.initializer, rule, why, **update)


def _change(entry: ActivationPlan | WeightPlan, where: str, rule: str, why: str, **update: Any) -> list[Decision]:
    """Change fields of an entry's spec, as far as they are not so already."""
    changed = {field: value for field, value in update.items() if getattr(entry.spec, field) != value}
    if not changed:
        return []
    what = ", ".join(f"{field} {getattr(entry.spec, field)} -> {value}" for field, value in changed.items())
    entry.spec = entry.spec.model_copy(update=changed)
    return [Decision(rule, where, what, why)]
