"""What a preset is."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.dtypes import is_block, is_integer

# Pairs of activation and weight types that onnxruntime's CPU kernels multiply as integers; with a bias that has a grid
# of its own (not int32) it does not use them.
_INTEGER_KERNELS = (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))
_OWN_BIASES = ("int8", "int16")


class Execution(Contract):
    """What onnxruntime does with a model that a preset makes."""

    native: bool = Field(description="True if its kernels compute on the quantized values themselves.")
    statement: str = Field(description="The same in a sentence.")


class Preset(Contract):
    """A named set of config settings."""

    name: str
    description: str
    settings: dict[str, Any]
    aliases: tuple[str, ...] = Field(default=(), description="Other names of ours.")
    quark_names: tuple[str, ...] = Field(default=(), description="Names of the same recipe in AMD Quark.")
    notes: tuple[str, ...] = Field(default=(), description="Where it deliberately differs from Quark's.")

    @property
    def execution(self) -> Execution:
        """What onnxruntime runs natively and what it only simulates."""
        mode = self.settings.get("mode", "static")
        activation = self.settings.get("activation", {}).get("dtype", "uint8")
        weight = self.settings.get("weight", {}).get("dtype", "int8")
        if mode == "float16":
            return Execution(native=True, statement="float16 operators, where the provider has them")
        if mode == "weights_only":
            return Execution(
                native=False,
                statement=f"{weight} weights are stored and dequantized in front of float32 kernels; activations stay "
                "float32",
            )
        if (activation, weight) in _INTEGER_KERNELS and self.settings.get("bias", {}).get("dtype") not in _OWN_BIASES:
            when = ", activation ranges taken at run time" if mode == "dynamic" else ""
            return Execution(native=True, statement=f"8-bit integer kernels{when}")
        return Execution(native=False, statement=_simulation(activation, weight))


def _simulation(activation: str, weight: str) -> str:
    both = activation if activation == weight else f"{activation} and {weight}"
    if (activation, weight) in _INTEGER_KERNELS:
        return (
            "simulated: onnxruntime's integer kernels take int32 biases only; it computes in float32 between Q/DQ pairs"
        )
    if is_integer(activation) and is_integer(weight):
        return f"simulated: onnxruntime has no integer kernels for {both} and computes in float32 between Q/DQ pairs"
    kind = "block formats have no ONNX type" if is_block(activation) or is_block(weight) else "values are rounded"
    return f"simulated: {kind}; every tensor is rounded to {both} and computed on in float32"
