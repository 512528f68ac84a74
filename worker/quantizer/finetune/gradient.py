"""The gradient solver, seen from outside: what it is given, what it may move, what it gives back. Needs no torch.

It reconstructs the float output y of a unit, one layer or one residual block with the activation function behind it,
from the inputs x~ that the quantized network gives the unit: min E ||f(W~, x~) - y||^2, by Adam over minibatches.

* AdaRound (Nagel et al. 2020, Up or Down?): every weight is rounded up or down, W~ = s (floor(W / s) + h(alpha)).
* AdaQuant (Hubara et al. 2020, Improving Post Training Neural Quantization): the weights themselves move, rounding
  passes gradients straight through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from worker.quantizer.plan.types import Grid

AttributeValue = int | float | str | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class Operation:
    """One node of a unit.

    Attributes:
        op_type: ONNX operator of the default domain.
        inputs: tensor names; None where an optional one is left out.
        output: tensor name.
        attributes: as the node has them.
    """

    op_type: str
    inputs: tuple[str | None, ...]
    output: str
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Parameter:
    """A constant of a unit that the solver may move.

    Attributes:
        values: float32, as the float network has it.
        grid: what it is rounded to; None for one that stays float.
        present: float32, same shape, as the quantized network has it so far.
        kind: weights are rounded or moved; biases follow where that is asked for; norms are the scales of
            normalizations, which have no grid.
        free_scale: the grid's scale may be any number, so that ``update_scales`` concerns it.
    """

    values: np.ndarray
    grid: Grid | None
    present: np.ndarray
    kind: Literal["weight", "bias", "norm"] = "weight"
    free_scale: bool = False


@dataclass(frozen=True)
class Unit:
    """What is reconstructed at once.

    Attributes:
        name: of the node, or of the block's last one.
        operations: in topological order.
        output: tensor that is compared with the float network's.
        parameters: by tensor name.
        constants: other constants, by tensor name.
        grids: of activations between the operations, and of the output if it is to be compared behind its grid.
    """

    name: str
    operations: tuple[Operation, ...]
    output: str
    parameters: Mapping[str, Parameter]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    grids: Mapping[str, Grid] = field(default_factory=dict)


@dataclass(frozen=True)
class Samples:
    """What the unit reads and should make, on the same calibration samples.

    Attributes:
        quantized: float32 [samples, ...] by tensor: inputs as the quantized network gives them.
        floats: the same of the float network; only needed where ``drop_ratio`` is below 1.
        target: float32 [samples, ...]: the unit's output in the float network.
    """

    quantized: Mapping[str, np.ndarray]
    target: np.ndarray
    floats: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of samples."""
        return len(self.target)


@dataclass(frozen=True)
class GradientSettings:
    """Options of the solver; the contracts AdaRound and AdaQuant say what each does.

    ``learning_rate`` None takes a part of each weight's grid step, ``reg_param`` None a part of the layer's error.
    ``reg_param``, ``beta_range`` and ``warm_start`` concern AdaRound alone, ``update_bias``, ``update_scales``
    and ``dampening`` AdaQuant alone.
    """

    algorithm: Literal["adaround", "adaquant"]
    num_iterations: int
    batch_size: int
    learning_rate: float | None
    seed: int
    device: str = "cpu"
    threads: int = 1
    early_stop: bool = False
    lr_adjust: tuple[float, float] | None = None
    drop_ratio: float = 1.0
    reg_param: float | None = None
    beta_range: tuple[float, float] = (20.0, 2.0)
    warm_start: float = 0.2
    update_bias: bool = True
    update_scales: bool = False
    dampening: bool = True


@dataclass(frozen=True)
class Solved:
    """What became of a unit.

    Attributes:
        integers: by weight on an integer grid that is kept changed.
        values: float32 by any other parameter that moved: biases, norms, weights on grids of floats and blocks.
        scales: float32 by weight whose scale moved, shaped like its grid's.
        error_before: mean squared error of the output over all samples, before.
        error_after: the same with what is given back; never above ``error_before``.
        iterations: steps taken.
        seconds: spent.
    """

    integers: dict[str, np.ndarray]
    values: dict[str, np.ndarray]
    scales: dict[str, np.ndarray]
    error_before: float
    error_after: float
    iterations: int
    seconds: float

    @property
    def changed(self) -> bool:
        """True if anything moved."""
        return bool(self.integers or self.values or self.scales)


def solve(unit: Unit, samples: Samples, settings: GradientSettings, check: Callable[[], None] = lambda: None) -> Solved:
    """Finetune ``unit`` on ``samples``.

    Args:
        unit: what to reconstruct.
        samples: at least one.
        settings: options.
        check: called between steps; raises to stop.

    Returns:
        What moved; nothing if no step made the error smaller.

    Raises:
        EngineError: the device is not there.
        UnsupportedUnitError: an operator of the unit has no counterpart here.
    """
    from worker.quantizer.finetune.gradient_training import train  # torch takes a second to load, and few runs need it

    return train(unit, samples, settings, check)


class UnsupportedUnitError(Exception):
    """A unit holds what the solver cannot compute; says what."""


def supported(op_type: str) -> bool:
    """True for operators that a unit may hold."""
    return op_type in OPERATORS


LINEAR_OPERATORS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
NORM_OPERATORS = ("InstanceNormalization", "LayerNormalization")
ACTIVATIONS = (
    "Relu",
    "PRelu",
    "LeakyRelu",
    "Gelu",
    "Tanh",
    "Clip",
    "Sigmoid",
    "Softmax",
    "HardSigmoid",
    "HardSwish",
)
_OTHERS = ("Add", "GlobalAveragePool", "Identity", "Max", "Min", "Mul")
OPERATORS = frozenset({*LINEAR_OPERATORS, *NORM_OPERATORS, *ACTIVATIONS, *_OTHERS})
