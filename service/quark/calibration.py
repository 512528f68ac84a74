"""Quark's calibration options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from service.contracts.base import below
from service.quark.draft import BAD_VALUE, Given, QuarkDraft
from service.quark.option import (
    Apply,
    B,
    D,
    F,
    I,
    L,
    Option,
    S,
    honoured,
    no_effect,
    refuse,
    refused,
    switched,
)
from service.quark.values import CALIBRATIONS, WEIGHT_METHODS, looked_up

_RANGES = "ranges come from the dataset or from 'tensor_ranges', not from a file; jobs resume automatically"


def _of(methods: tuple[str, ...], field: str) -> Apply:
    """Sets a field of the activations' calibration where its method is one of ``methods``."""

    def apply(draft: QuarkDraft, given: Given) -> None:
        if draft.method in methods:
            draft.put(f"activation/calibration/{field}", given.value, given)
        else:
            words = " and ".join(methods)
            draft.note(
                given.pointer, f"{given.name} has no effect: it applies to {words}, but the method is {draft.method}"
            )

    return apply


def _symmetric_ranges(draft: QuarkDraft, given: Given) -> None:
    if given.value and draft.value("ActivationSymmetric") is False:
        refuse(draft, given, "ActivationSymmetric sets activations to asymmetric")
        return
    if given.value:
        draft.set("activation/symmetric", True, given.pointer)
    draft.honour(given.pointer)


def _moving_average(draft: QuarkDraft, given: Given) -> None:
    if given.value and draft.method == "minmax":
        constant = draft.value("CalibMovingAverageConstant", 0.01)
        draft.set(
            "activation/calibration/moving_average", constant, draft.pointer("CalibMovingAverageConstant", given.name)
        )
    elif given.value:
        draft.note(given.pointer, f"{given.name} has no effect: it applies to minmax, but the method is {draft.method}")
        return
    draft.honour(given.pointer)


def _moving_average_constant(draft: QuarkDraft, given: Given) -> None:
    if draft.value("CalibMovingAverage", False):
        draft.honour(given.pointer)
    else:
        draft.note(given.pointer, f"{given.name} has no effect without CalibMovingAverage")


def _bins(draft: QuarkDraft, given: Given) -> None:
    if draft.method in ("entropy", "distribution", "mse"):
        draft.put("activation/calibration/bins", given.value, given)
    else:
        draft.note(
            given.pointer,
            f"NumBins has no effect here: {draft.method} does not use a histogram with a fixed number of bins",
        )


def _pof2_mode(draft: QuarkDraft, given: Given) -> None:
    if given.value == "All":
        draft.honour(given.pointer)
    elif given.value in ("MostCommon", "Percentile"):
        refuse(draft, given, "the error is always summed over all values of all samples, which is Quark's mode All")
    else:
        draft.problem(given.pointer, "MinMSEModePof2Scale must be All, MostCommon or Percentile", BAD_VALUE)


def _float_mode(draft: QuarkDraft, given: Given) -> None:
    if given.value == "All":
        draft.honour(given.pointer)
    elif given.value in ("Percentile", "HistCenter"):
        draft.note(given.pointer, "MinMSEModeFloatScale has no effect here: all relevant ranges are searched")
    else:
        draft.problem(given.pointer, "MinMSEModeFloatScale must be Percentile, HistCenter or All", BAD_VALUE)


def _weight_method(draft: QuarkDraft, given: Given) -> None:
    method = looked_up(draft, "WeightCalibrateMethod", given.value, WEIGHT_METHODS, given.pointer)
    if method is None:
        return
    if draft.get("weight/scale") != "float32":
        draft.note(given.pointer, "WeightCalibrateMethod has no effect: it applies to float32 scales only, as in Quark")
    else:
        draft.put("weight/calibration", dict(CALIBRATIONS[method]), given)


def _scenario(draft: QuarkDraft, given: Given) -> None:
    if given.value == "same":
        draft.honour(given.pointer)
    elif draft.method != "distribution":
        draft.note(given.pointer, "Scenario has no effect: it applies to distribution calibration only")
    else:
        refuse(draft, given, "only the scenario 'same' is supported")


def _limits(value: Any) -> Any:
    return {"minimum": value[0], "maximum": value[1]} if isinstance(value, list) and len(value) == 2 else value


def _of_random_data(key: str, convert: Callable[[Any], Any] = lambda value: value) -> Apply:
    def apply(draft: QuarkDraft, given: Given) -> None:
        if not draft.value("UseRandomData", False):
            draft.idle(given, {}, "has no effect without UseRandomData")
            return
        draft.put(f"random_calibration/{key}", {name: convert(value) for name, value in given.value.items()}, given)
        for name in given.value:
            draft.origins[f"random_calibration/{key}/{name}"] = below(given.pointer, name)

    return apply


_RANDOM_RANGES = _of_random_data("ranges", _limits)
CALIBRATION_OPTIONS: tuple[Option, ...] = (
    honoured("ActivationSymmetric", B, False, "activation.symmetric"),
    honoured("WeightSymmetric", B, None, "weight.symmetric"),
    honoured("CalibTensorRangeSymmetric", B, None, "activation.symmetric", _symmetric_ranges),
    honoured("CalibMovingAverage", B, False, "activation.calibration.moving_average", _moving_average),
    honoured("CalibMovingAverageConstant", F, 0.01, "activation.calibration.moving_average", _moving_average_constant),
    honoured(
        "Percentile",
        F,
        99.999,
        "activation.calibration.percentile",
        _of(("percentile",), "percentile"),
        "percentile of the values; in Quark, of the absolute values",
    ),
    honoured("LWPMetric", S, "mae", "activation.calibration.metric", _of(("layerwise_percentile",), "metric")),
    honoured(
        "PercentileCandidates",
        L,
        [99.99, 99.999, 99.99999],
        "activation.calibration.candidates",
        _of(("layerwise_percentile",), "candidates"),
    ),
    no_effect("LWPUseHistogram", B, True, "statistics are always streamed"),
    honoured("NumBins", I, None, "activation.calibration.bins", _bins, "for entropy, distribution and mse"),
    honoured("NumQuantizedBins", I, 128, "activation.calibration.quantized_bins", _of(("entropy",), "quantized_bins")),
    honoured("Scenario", S, "same", "activation.calibration", _scenario, "'same' only"),
    honoured("MinMSEModePof2Scale", S, "All", "activation.calibration", _pof2_mode, "'All' only"),
    honoured("WeightCalibrateMethod", S, "CalibrationMethod.MinMax", "weight.calibration", _weight_method),
    honoured("MinMSEModeFloatScale", S, "Percentile", "weight.calibration", _float_mode, "always as 'All'"),
    honoured("CalibDataSize", I, None, "calibration_samples"),
    no_effect(
        "CalibWorkerNum", I, 1, "the service chooses the threads of each job, and one pass collects all statistics"
    ),
    no_effect("CalibOptimizeMem", B, True, "statistics are streamed: memory does not grow with the number of samples"),
    refused("SaveTensorHistFig", B, False, "no figures are drawn; the report has the values for every layer"),
    refused(
        "CalibPassthroughOpTypes",
        L,
        [],
        "the target determines which nodes keep the quantization parameters of their input",
    ),
    honoured(
        "UseRandomData",
        B,
        False,
        "random_calibration",
        switched({"random_calibration": {}}),
        "only if no dataset is given; 8 runs, in Quark 1; the report states that accuracy figures are not meaningful",
    ),
    honoured("RandomDataReaderInputShape", D, {}, "random_calibration.shapes", _of_random_data("shapes")),
    honoured("RandomDataReaderInputDataRange", D, None, "random_calibration.ranges", _RANDOM_RANGES, "per input"),
    refused("SaveAndRestore", S, None, _RANGES),
    refused("TensorsRangeFile", S, None, _RANGES),
)
