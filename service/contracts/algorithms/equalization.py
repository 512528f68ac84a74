"""Steps that repair a network before any finetuning: equalization, smoothing, bias correction."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from service.contracts.algorithms.base import ALTERNATIVES, SMOOTHED_SQNR_DB, AlgorithmBase
from service.contracts.base import SEARCH_SPACE

ActivationWeight = Annotated[
    Annotated[float, Field(ge=0.0, le=10.0)] | Literal["auto"],
    WithJsonSchema(
        {"anyOf": [{"type": "number", "minimum": 0.0, "maximum": 10.0}, {"const": "auto", "type": "string"}]}
    ),
]


class CrossLayerEqualization(AlgorithmBase):
    """Cross-layer equalization: moves scale between adjacent layers, so that one grid fits all channels of a weight.

    The float network computes the same function (Nagel et al. 2019, Data-Free Quantization, section 4.1). Pruned dead
    channels, absorbed biases and kept activation limits are exact on the calibration data; beyond it the function may
    differ. Only ``replace_relu6`` relu changes the function.
    """

    place = 0
    starts_afresh = True

    method: Literal["cross_layer_equalization"] = "cross_layer_equalization"
    steps: int = Field(
        default=-1,
        ge=-1,
        le=1000,
        description="Sweeps over all adjacent layers; -1 continues until no scale changes by more than one percent.",
    )
    balance_method: Literal["max"] = Field(
        default="max", description="Statistic of a channel's weights that sets its range."
    )
    scale_use_threshold: bool = Field(
        default=False, description="Skip channels whose two ranges add up to less than weight_threshold."
    )
    weight_threshold: float = Field(
        default=0.5, ge=0.0, description="Weight threshold; used with ``scale_use_threshold``."
    )
    scale_append_bias: bool = Field(
        default=True,
        description="Count a bias of 8 or 16 bits, which has its own grid, as part of its channel's range.",
    )
    total_layer_diff_threshold: float = Field(
        default=1.9e-7,
        ge=0.0,
        description="With steps -1: also stop when the sum of the layers' mean weight changes is below this.",
    )
    use_activations: bool = Field(
        default=True,
        description="Never scale a channel's activations beyond its tensor's range on the calibration data.",
    )
    activation_weight: ActivationWeight = Field(
        default=0.1,
        description=(
            "Weight of an activation's squared rounding error relative to that of a weight with the same relative"
            " size, for weights with one scale per tensor. 0: weights only; auto: 0.1, 1 and 0.01 are tried, and "
            "the network's outputs on held-out samples decide."
        ),
        json_schema_extra={ALTERNATIVES: [0.1, 1.0, 0.01]},
    )
    replace_relu6: Literal["auto", "per_channel", "never", "relu"] = Field(
        default="auto",
        description=(
            "How an upper limit (ReLU6) between two equalized layers is handled. per_channel: scaled exactly with"
            " each channel, by a Min; never: the Clip is kept, and channels that reach it on the calibration data"
            " stay unscaled; relu: removed; auto: chosen by the target."
        ),
    )
    silent_channels: Literal["zero", "keep"] = Field(
        default="zero", description="Dead channels (0 on all calibration data): prune them, or leave them unchanged."
    )
    absorb_bias: bool = Field(
        default=True,
        description="Absorb the part of a bias that always passes the activation function into the next layer's bias.",
    )
    stem: bool = Field(
        default=True,
        description=(
            "Also equalize layers whose outputs reach a normalization that could not be folded, such as a "
            "stem's: it absorbs the scale."
        ),
    )


class OutlierChannels(AlgorithmBase):
    """Treats the few channels that set the range of a whole tensor (see ``outlier_ratio`` of the config).

    split replaces a channel by several with a part of its value each (Zhao et al. 2019, Improving Neural Network
    Quantization without Retraining using Outlier Channel Splitting); input_scale moves scale from the channel into the
    weights that read it; higher_bits gives the tensor 16 bits. The float network computes the same function.
    """

    place = 0
    starts_afresh = True

    method: Literal["outlier_channels"] = "outlier_channels"
    treatment: Literal["auto", "input_scale", "split", "higher_bits"] = Field(
        default="auto",
        description=(
            "auto tries all three, in the order of their cost at run time, and keeps the one closest to the float"
            " model on held-out samples; a more expensive one must be better by one decibel."
        ),
    )
    growth: float = Field(
        default=0.25,
        gt=0.0,
        le=4.0,
        description="Largest number of channels that split adds to a tensor, as a share of its channels; at least one.",
    )
    insert_mul: bool = Field(
        default=True,
        description=(
            "Let input_scale insert a float Mul before a matrix product's quantizer if no earlier constant can "
            "absorb the scale and the target also computes in float."
        ),
    )


class SmoothQuant(AlgorithmBase):
    """SmoothQuant: moves scale from a linear layer's inputs into its weight, channel by channel.

    s_j = max|x_j|^alpha / max|w_j|^(1-alpha) (Xiao et al. 2022, SmoothQuant, equation 4). In mode dynamic without
    calibration data the factors of the normalizations in front show how large channels are, and random tokens where
    there is none.
    """

    place = 1
    starts_afresh = True
    modes = ("static", "dynamic")
    needs_data = False

    method: Literal["smooth_quant"] = "smooth_quant"
    alpha: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description=(
            "Share of the range that is moved into the weight (alpha). null: searched per tensor by the error of "
            "the layers that read it; tensors that do not improve are left unchanged."
        ),
    )
    insert_mul: bool = Field(
        default=True,
        description="Insert a float Mul before a tensor's quantizer where no constant before it can absorb the "
        "scale; false: leave such tensors unchanged.",
    )
    loud_in_float: bool = Field(
        default=True,
        description=(
            "Mode dynamic: products whose inputs stay loud (a channel 20 times the median) read floats, with weights "
            "stored as integers, where that brings the outputs closer by one decibel on held-out samples."
        ),
    )

    @property
    def least_gain_db(self) -> float:
        """As part of a default it has to gain 1 dB: it fits the range of each channel to the calibration samples.

        Other samples leave such ranges sooner, which samples that the ranges were taken from do not show.
        """
        return 0.0 if self.when == "always" else 1.0

    @property
    def lost_sqnr_db(self) -> float:
        """Nearly all of it is folded into constants."""
        return SMOOTHED_SQNR_DB if self.when == "loss" else super().lost_sqnr_db


class Awq(AlgorithmBase):
    """AWQ: moves scale from a linear layer's inputs into its weight; weights that meet large inputs are rounded least.

    s_j = mean|x_j|^alpha (Lin et al. 2023, AWQ, equations 4 and 5). For mode weights_only, in which inputs stay in
    float.
    """

    place = 1
    starts_afresh = True
    modes = ("weights_only",)

    method: Literal["awq"] = "awq"
    alpha: float | None = Field(
        default=None,
        ge=0.0,
        le=1.0,
        description=(
            "Exponent of the inputs' mean magnitude (alpha). null: searched per tensor by the error of the layers"
            " that read it, also with the magnitude of the weights; tensors that do not improve are left "
            "unchanged."
        ),
    )
    insert_mul: bool = Field(
        default=False,
        description="Insert a Mul before layers where no constant before them can absorb the scale; false: leave "
        "them unchanged, so that the model does no extra work.",
    )


class BiasCorrection(AlgorithmBase):
    """Bias correction: restores the mean of every output channel that quantization changed.

    fast: b += (W - W~) E[x], in closed form, with E[x] from statistics (Nagel et al. 2019, Data-Free Quantization,
    section 4.2). full: layer by layer on the quantized network as corrected so far, measured after the activation
    function.
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
        default=64, ge=1, description="Samples for mode full; null: the whole calibration set."
    )
    insert_add: bool = Field(
        default=True,
        description=(
            "Insert an Add of zero after a MatMul whose result floats read, to carry the correction; false: "
            "leave it unchanged."
        ),
    )
