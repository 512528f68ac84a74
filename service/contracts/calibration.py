"""Calibration methods: how the range of an activation or a weight is found."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.contracts.base import SEARCH_SPACE, Contract


class MinMaxCalibration(Contract):
    """Range = smallest and largest value seen on the calibration data."""

    method: Literal["minmax"] = "minmax"
    moving_average: float | None = Field(
        default=None,
        gt=0.0,
        le=1.0,
        description="Weight of each sample in a running mean of the samples' extremes; null takes the extremes of all.",
    )


class PercentileCalibration(Contract):
    """Range = central share of all values seen, in percent; (100 - percentile) / 2 is cut on either side."""

    method: Literal["percentile"] = "percentile"
    percentile: float = Field(
        default=99.999,
        gt=50.0,
        le=100.0,
        description="Share of values kept, in percent.",
        json_schema_extra={SEARCH_SPACE: [99.99]},
    )


class LayerwisePercentileCalibration(Contract):
    """Percentile, with the candidate chosen tensor by tensor that leaves the smallest quantization error."""

    method: Literal["layerwise_percentile"] = "layerwise_percentile"
    candidates: tuple[Annotated[float, Field(gt=50.0, le=100.0)], ...] = Field(
        default=(99.99, 99.999, 99.99999), min_length=1, max_length=16, description="Percentiles tried, in percent."
    )
    metric: Literal["mae", "mse"] = Field(default="mae", description="Error that decides.")


class EntropyCalibration(Contract):
    """Range whose quantized histogram has the smallest Kullback-Leibler divergence from the float one.

    Among those whose mean square error is not above that of the whole range.
    """

    method: Literal["entropy"] = "entropy"
    bins: int = Field(default=2048, ge=128, le=65536, description="Histogram bins.")
    quantized_bins: int = Field(default=128, ge=16, le=8192, description="Levels of the quantized histogram.")


class DistributionCalibration(Contract):
    """Range that gives the tensor and its type the same standard deviation (onnxruntime's 'distribution').

    That is for 8-bit floats; integer types get the observed range stretched to be symmetric, as onnxruntime does.
    """

    method: Literal["distribution"] = "distribution"
    bins: int = Field(default=2048, ge=128, le=65536, description="A sample of 16 * bins values is judged.")


class MseCalibration(Contract):
    """Range with the smallest mean square error between a tensor and its quantized self.

    With scale power_of_two every exponent that can matter is tried (MinMSE). Ranges of the network's inputs are
    moved on from there as long as that brings its outputs closer.
    """

    method: Literal["mse"] = "mse"
    bins: int = Field(default=2048, ge=128, le=65536, description="16 * bins values are judged, outliers among them.")


class NonOverflowCalibration(Contract):
    """The smallest power-of-two scale whose grid covers the extremes: nothing saturates on the calibration data."""

    method: Literal["non_overflow"] = "non_overflow"


Candidate = Annotated[
    MinMaxCalibration | PercentileCalibration | LayerwisePercentileCalibration | EntropyCalibration | MseCalibration,
    Field(discriminator="method"),
]


class AutoCalibration(Contract):
    """The candidate whose ranges bring the outputs of the network closest to those of the float one.

    Each is tried on calibration data with activations quantized and weights in float, before any algorithm; the report
    says what each came to. Concerns mode static.
    """

    method: Literal["auto"] = "auto"
    candidates: tuple[Candidate, ...] = Field(
        default=(
            MinMaxCalibration(),
            PercentileCalibration(percentile=99.99),
            PercentileCalibration(percentile=99.999),
            MseCalibration(),
        ),
        min_length=1,
        max_length=8,
        description="Methods tried; of equal ones the first.",
    )


ActivationCalibration = Annotated[
    MinMaxCalibration
    | PercentileCalibration
    | LayerwisePercentileCalibration
    | EntropyCalibration
    | DistributionCalibration
    | MseCalibration
    | NonOverflowCalibration
    | AutoCalibration,
    Field(discriminator="method"),
]

WeightCalibration = Annotated[
    MinMaxCalibration | PercentileCalibration | MseCalibration | NonOverflowCalibration,
    Field(discriminator="method"),
]


class TensorRange(Contract):
    """A range that is supplied instead of calibrated."""

    minimum: float = Field(allow_inf_nan=False)
    maximum: float = Field(allow_inf_nan=False)
