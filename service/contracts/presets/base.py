"""What a preset is, and the finetuning that presets share.

Quark has two sets of parameters for each finetuning algorithm: that of ``get_default_config`` and that of its newer
``QConfig``.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from service.contracts.base import Contract
from service.contracts.specs import is_block, is_integer

# Pairs of activation and weight types that onnxruntime's CPU kernels multiply as integers; with a bias that has a grid
# of its own (not int32) it does not use them.
_INTEGER_KERNELS = (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8"))
_OWN_BIASES = ("int8", "int16")


class Execution(Contract):
    """How onnxruntime runs a model quantized with a preset."""

    native: bool = Field(description="True if its kernels compute on the quantized values directly.")
    statement: str = Field(description="The same as a sentence.")


class Preset(Contract):
    """A named set of config settings."""

    name: str
    description: str
    settings: dict[str, Any]
    aliases: tuple[str, ...] = Field(default=(), description="Other names of the preset.")
    quark_names: tuple[str, ...] = Field(default=(), description="Names of the same preset in AMD Quark.")
    notes: tuple[str, ...] = Field(default=(), description="Intended differences from the Quark preset.")

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
                statement=f"{weight} weights are stored and dequantized before float32 kernels; float32 activations",
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


# What AdaRoundConfig and AdaQuantConfig have in common where nothing is given.
QUARK_SEED = 1705472343
_DEFAULTS: dict[str, Any] = {"fixed_seed": QUARK_SEED, "batch_size": 1, "early_stop": False}
# What the two differ in, and what neither set of parameters touches.
_OF_METHOD: dict[str, dict[str, Any]] = {
    "adaround": {"learning_rate": 0.1, "reg_param": 0.01, "beta_range": [20.0, 2.0], "warm_start": 0.2},
    "adaquant": {"learning_rate": 1e-5},
}

DESCENT_NOTE = (
    "AdaRound chooses the integers by solver moments, coordinate descent on second moments, and lets biases follow; "
    "with solver gradient it is Quark's descent by minibatches, with these very settings."
)
_JUDGED = (
    "Some of the calibration samples judge the result, and finetuning that makes the network worse "
    "is undone (accept: if_better); Quark keeps every result."
)
_NOTES = {"adaround": (DESCENT_NOTE, _JUDGED), "adaquant": (_JUDGED,)}


def legacy_parameters(method: str) -> dict[str, Any]:
    """An entry of ``algorithms`` as Quark's presets of ``get_default_config`` have it (DEFAULT_ADAROUND_PARAMS)."""
    given = {"data_size": 1000, "batch_size": 2, "early_stop": True, "optim_device": "cpu", "infer_device": "cpu"}
    return {**legacy_defaults(method), **given}


def legacy_defaults(method: str) -> dict[str, Any]:
    """What holds in Quark where the dict FastFinetune says nothing."""
    return {
        "method": method,
        **_DEFAULTS,
        "num_iterations": 1000,
        **_OF_METHOD[method],
        **({"update_bias": True} if method == "adaquant" else {}),
    }


def qconfig_defaults(method: str) -> dict[str, Any]:
    """What holds in Quark where AdaRoundConfig and AdaQuantConfig are told nothing, as in the presets of QConfig."""
    return {
        "method": method,
        **_DEFAULTS,
        "num_iterations": 1000 if method == "adaround" else 3000,
        **_OF_METHOD[method],
        **({"update_bias": False} if method == "adaquant" else {}),
    }


def finetuned(base: Preset, method: str) -> Preset:
    """``base`` with a finetuning on top: its names with the word of the method in Quark's place for it."""
    word = method.upper()
    of_qconfig = base.name.endswith("_qconfig")
    names = base.quark_names if of_qconfig else [name for name in base.quark_names if not name.endswith("_QCONFIG")]
    parameters = qconfig_defaults(method) if of_qconfig else legacy_parameters(method)
    return Preset(
        name=_insert(base.name, method),
        description=f"As {base.name}, then {'AdaRound' if method == 'adaround' else 'AdaQuant'}.",
        settings={**base.settings, "algorithms": [parameters]},
        quark_names=tuple(_insert(name, word) for name in names),
        notes=(*base.notes, *_NOTES[method]),
    )


def _insert(name: str, word: str) -> str:
    """XINT8_CONFIG and ADAROUND give XINT8_ADAROUND_CONFIG."""
    for end in ("_QCONFIG", "_CONFIG", "_qconfig"):
        if name.endswith(end):
            return f"{name.removesuffix(end)}_{word}{end}"
    return f"{name}_{word}"


def finetuning_notes(method: str) -> tuple[str, ...]:
    """Where a finetuning with Quark's parameters deliberately differs from Quark's."""
    return _NOTES[method]
