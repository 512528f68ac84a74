"""What the engine knows of an ONNX operator: one record each; those that there are stand in ``table``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any


class Family(Enum):
    """What an operator is."""

    CONVOLUTION = "multiplies patches by a weight"
    PRODUCT = "multiplies matrices"
    AFFINE = "scales and shifts each channel by stored numbers"
    NORMALIZATION = "divides by a deviation or a length that it takes of its data"
    RECURRENT = "goes along a sequence with a state"
    ACTIVATION = "an activation function: each element from one element"
    SOFTMAX = "makes probabilities along an axis"
    ARITHMETIC = "adds, subtracts, multiplies or divides two operands"
    EXTREMUM = "takes the larger or the smaller of its operands"
    FUNCTION = "another function of each element"
    POOL = "reduces windows"
    GLOBAL_POOL = "reduces all positions"
    REDUCTION = "reduces axes"
    REARRANGEMENT = "hands on every element once, in another shape or along other axes"
    SHUFFLE = "moves elements between channels and positions"
    SELECTION = "hands on some elements, or some several times"
    OTHER = "anything else"


class Sign(Enum):
    """When no element of the results is negative."""

    UNKNOWN = "cannot be told"
    NEVER_NEGATIVE = "always"
    AS_FIRST = "if none of the first operand is"
    AS_ALL = "if none of any operand is"
    AS_ANY = "if none of at least one operand is"


class Scores(Enum):
    """Whether an output that the operator makes holds class scores."""

    YES = "it does"
    NO = "it does not"
    BY_SHAPE = "if it is a row of classes"


class Float16(Enum):
    """Whether float32 that the operator computes may become float16; kernels that are missing aside."""

    BY_SCHEMA = "where its schema lets a type be either"
    NEVER = "its definition has float32 constants"
    UNREDUCED = "unless it reduces what meets at one place, for which there is no kernel"


class Reconstruction(Enum):
    """What a unit of AdaRound or AdaQuant does with the operator (see ``finetune/blocks.py``)."""

    WEIGHT = "its weight is rounded anew"
    NORM = "its scales are learned"
    FOLLOWS = "it ends a layer's unit"
    INSIDE = "it may stand inside a block"


# A function of tensors, or the name of one in torch.nn.functional.
TorchForm = str | Callable[..., Any]


@dataclass(frozen=True)
class Operator:
    """What the engine knows of an operator of the default ONNX domain.

    The defaults claim nothing. Fields name facts of the operator, not who reads them; what a target computes in
    integers is told by ``plan/targets``, and how channels pass by ``channels``.
    """

    family: Family = Family.OTHER  # what it is
    _: KW_ONLY
    sign: Sign = Sign.UNKNOWN  # when its results are not negative
    within_one: bool = False  # its results lie within [0, 1]
    exponential: bool = False  # a rounding step of its operand is a relative error of its result, however small that is
    needs_digits: bool = False  # it makes so much of small differences that 8 or 16 bits are too few
    limits: bool = False  # it hands on what lies within two limits, and the nearest of these for anything else
    pointwise: bool = False  # each element of the result is made of those of the operands at the same place
    homogeneous: bool = False  # a positive factor per channel before it is the same factor behind it
    # its results are elements of its operands, sums or products of them, and keep a large one large
    carries: bool = False
    keeps_values: bool = False  # its results are the elements of the first operand, each at least once
    keeps_scale: bool = False  # integers that it reads with one scale and zero point stand for what it makes with these
    size_by_values: bool = False  # how many elements it makes hangs on the values that it reads, not on shapes
    # an operand says how large its result is; without a constant there that cannot be told
    grows_by_values: bool = False
    computes_shapes: bool = False  # it makes shapes, or what has a shape that it is given
    joins_shapes: bool = False  # onnx's shape inference carries the values of shapes through it
    repeats_body: bool = False  # it runs a sub-graph several times
    slow_reference: bool = False  # onnx's reference implementation loops over elements in Python
    divisor: int | None = None  # which input is divided by, or of which a logarithm is taken; None for others
    bias: int | None = None  # which input is added per output channel; None for others
    parameters: tuple[int, ...] = ()  # which inputs scale and shift channels; none for weights of products
    trained: tuple[int, ...] = ()  # which inputs quantization-aware training moves
    channel_axis: int | None = None  # axis of the channels in what it makes; None where that follows from what it reads
    scores: Scores | None = None  # whether it makes class scores; None where that follows from nothing
    float16: Float16 = Float16.BY_SCHEMA  # what becomes of it in float16
    reconstruction: Reconstruction | None = None  # what it is in a unit that is reconstructed; None: no unit holds it
    integer_form: str | None = None  # operator that computes it on integers whose grid is found at run time
    # its form in torch, called with its inputs and its ``attributes``; None where ``autodiff`` has the form, or nothing
    # has
    torch: TorchForm | None = None
    # by argument of ``torch``: attribute of the node, and its default
    attributes: Mapping[str, tuple[str, float | int | str]] = field(default_factory=dict)

    @property
    def is_linear(self) -> bool:
        """True for products with a weight: Conv, ConvTranspose, Gemm, MatMul."""
        return self.family in (Family.CONVOLUTION, Family.PRODUCT)
