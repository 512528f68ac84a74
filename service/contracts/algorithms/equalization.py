"""Steps that repair a network before any finetuning: equalization, smoothing, bias correction."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from service.contracts.algorithms.base import ALTERNATIVES, AlgorithmBase
from service.contracts.base import SEARCH_SPACE

ActivationWeight = Annotated[
    Annotated[float, Field(ge=0.0, le=10.0)] | Literal["auto"],
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0.0, "maximum": 10.0}, {"const": "auto", "type": "string"}]}
    ),
]


class CrossLayerEqualization(AlgorithmBase):
    """Moves scale between neighbouring layers, channel by channel, so that one grid fits all channels of a weight.

    The float network stays the same function (Nagel et al. 2019, Data-Free Quantization, section 4.1). Silent
    channels, absorbed biases and limits that are kept as they are hold it to that on the calibration data; beyond what
    these show it may differ. Only ``replace_relu6`` relu makes another function of it.
    """

    place = 0
    starts_afresh = True

    method: Literal["cross_layer_equalization"] = "cross_layer_equalization"
    steps: int = Field(
        default=-1,
        ge=-1,
        le=1000,
        description="Sweeps over all neighbours; -1 goes on until no scale moves by more than a percent.",
    )
    balance_method: Literal["max"] = Field(default="max", description="What of a channel's weights counts.")
    scale_use_threshold: bool = Field(
        default=False, description="Leave channels unchanged whose two ranges add up to less than weight_threshold."
    )
    weight_threshold: float = Field(default=0.5, ge=0.0, description="See scale_use_threshold.")
    scale_append_bias: bool = Field(
        default=True,
        description="Count a bias of 8 or 16 bits, which has its own grid, as part of its channel's range.",
    )
    total_layer_diff_threshold: float = Field(
        default=1.9e-7,
        ge=0.0,
        description="With steps -1: it also ends once the weights change by less, as the sum of all layers' means.",
    )
    use_activations: bool = Field(
        default=True,
        description="Never let a channel's activations outgrow its tensor's range on the calibration data.",
    )
    activation_weight: ActivationWeight = Field(
        default=0.1,
        description=(
            "Weight of a squared rounding error of an activation relative to one of a weight of the same "
            "relative size, where a whole weight has one scale. 0: weights alone; auto: 0.1, 1 and 0.01 are "
            "tried, and the network's outputs on held-out samples decide."
        ),
        json_schema_extra={ALTERNATIVES: [0.1, 1.0, 0.01]},
    )
    replace_relu6: Literal["auto", "per_channel", "never", "relu"] = Field(
        default="auto",
        description=(
            "What becomes of an upper limit (ReLU6) between two equalized layers. per_channel: it is scaled with each "
            "channel, exactly, by a Min; never: the Clip stays, and channels that reach it on the calibration data "
            "stay unscaled; relu: it is dropped; auto: as suits the target."
        ),
    )
    silent_channels: Literal["zero", "keep"] = Field(
        default="zero", description="Channels that are 0 on all calibration data: cut them off, or leave them alone."
    )
    absorb_bias: bool = Field(
        default=True, description="Move the part of a bias that is always passed on into the next layer's bias."
    )
    stem: bool = Field(
        default=True,
        description=(
            "Also equalize layers whose outputs reach a normalization that could not be folded, such as a "
            "stem's: it absorbs the scale."
        ),
    )


class OutlierChannels(AlgorithmBase):
    """Treats channels that alone set the range of a tensor: see ``outlier_ratio`` of the config for which these are.

    split puts several channels of a part of the value each in the place of one (Zhao et al. 2019, Improving Neural
    Network Quantization without Retraining using Outlier Channel Splitting); input_scale moves scale from the channel
    into the weights that read it; higher_bits gives the tensor 16 bits. The float network stays the same function.
    """

    place = 0
    starts_afresh = True

    method: Literal["outlier_channels"] = "outlier_channels"
    treatment: Literal["auto", "input_scale", "split", "higher_bits"] = Field(
        default="auto",
        description=(
            "auto tries all three, cheaper ones at run time first, and keeps the closest to the float model "
            "on held-out samples: a more expensive one has to be a decibel better."
        ),
    )
    growth: float = Field(
        default=0.25,
        gt=0.0,
        le=4.0,
        description="Channels that split may add to a tensor, as a part of those it has; at least one.",
    )
    insert_mul: bool = Field(
        default=True,
        description="Let input_scale insert a float Mul before a matrix product's quantizer where no constant before "
        "it can absorb the scale and the target computes in floats, too.",
    )


class SmoothQuant(AlgorithmBase):
    """Moves scale from a linear layer's inputs into its weight, channel by channel: s_j = max|x_j|^alpha /
    max|w_j|^(1-alpha) (Xiao et al. 2022, SmoothQuant, equation 4).
    """

    place = 1
    starts_afresh = True
    modes = ("static", "dynamic")

    method: Literal["smooth_quant"] = "smooth_quant"
    alpha: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Share of the difficulty that goes into the weight; null searches it for every tensor by the error "
        "of the layers that read it, and leaves alone what does not get better.",
    )
    insert_mul: bool = Field(
        default=True,
        description="Insert a float Mul before a tensor's quantizer where no constant before it can absorb the "
        "scale; false: leave such tensors unchanged.",
    )


class Awq(AlgorithmBase):
    """Moves scale from a linear layer's inputs into its weight, so that the weights that meet large inputs are rounded
    least: s_j = mean|x_j|^alpha (Lin et al. 2023, AWQ, equations 4 and 5).

    For mode weights_only, in which inputs stay in float.
    """

    place = 1
    starts_afresh = True
    modes = ("weights_only",)

    method: Literal["awq"] = "awq"
    alpha: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description="Exponent of the inputs' mean size; null searches it for every tensor by the error of the layers "
        "that read it, with the size of the weights taken into account too, and leaves alone what does not get better.",
    )
    insert_mul: bool = Field(
        default=False,
        description="Insert a Mul before layers where no constant before them can absorb the scale; false: leave "
        "them unchanged, so that the model does no extra work.",
    )


class BiasCorrection(AlgorithmBase):
    """Gives every output channel back the mean that quantization took from it.

    fast: b += (W - W~) E[x], in closed form, E[x] from statistics (Nagel et al. 2019, Data-Free Quantization, section
    4.2). full: layer after layer on the quantized network as corrected so far, judged behind the activation function.
    """

    place = 3
    choice = "the biases that bias_correction has corrected"
    modes = ("static", "weights_only", "dynamic")

    method: Literal["bias_correction"] = "bias_correction"
    mode: Literal["fast", "full", "auto"] = Field(
        default="full",
        description=(
            "fast: in closed form; full: layer by layer on the quantized network; auto: the one with closer "
            "outputs on held-out samples."
        ),
        json_schema_extra={SEARCH_SPACE: ["fast", "full"], ALTERNATIVES: ["full", "fast"]},
    )
    data_size: int | None = Field(
        default=64, ge=1, description="Samples that full is measured on; null: all of the calibration set."
    )
    insert_add: bool = Field(
        default=True,
        description=(
            "Insert an Add of zero after a MatMul whose result floats read, to carry the correction; false: "
            "leave it unchanged."
        ),
    )
