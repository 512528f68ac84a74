"""Is there the data that a quantization needs? One rule for the API server, the command line and the engine."""

from __future__ import annotations

from collections.abc import Iterator

from service.contracts.algorithms import Autopilot
from service.contracts.config import QuantizationConfig
from service.contracts.errors import CalibrationMissingError, FieldProblem, InvalidConfigError
from service.contracts.random_data import RandomCalibration
from service.contracts.training_checks import random_data_faults

CALIBRATION_POINTER = "/calibration_dataset_id"


def random_data_of(config: QuantizationConfig, *, pointer: str = CALIBRATION_POINTER) -> RandomCalibration:
    """What stands in for a calibration dataset that is not given.

    Ranges of mode static are taken from data, and algorithms learn from it. Elsewhere data serves to compare both
    models, and random inputs do.

    Args:
        config: resolved recipe.
        pointer: of the calibration dataset in the request.

    Raises:
        CalibrationMissingError: nothing may.
    """
    if config.random_calibration is not None:
        return config.random_calibration
    if config.mode != "static" and not config.algorithms:
        return RandomCalibration()
    methods = ", ".join(algorithm.method for algorithm in config.algorithms)
    taken = "ranges of activations are taken from it" if config.mode == "static" else f"{methods} learns from it"
    raise CalibrationMissingError(
        f"There is no calibration data, and {taken}.",
        hint="Give a calibration dataset. To try structure and speed without one, set random_calibration in the config "
        "(in a config of AMD Quark: the extra option UseRandomData).",
        pointer=pointer,
    )


def check_data_given(
    config: QuantizationConfig, *, calibration: bool, evaluation: bool, pointer: str = CALIBRATION_POINTER
) -> None:
    """Refuse a quantization without the data that it needs, and judgement of accuracy on random data.

    Args:
        config: resolved recipe.
        calibration: a calibration dataset is given.
        evaluation: an evaluation dataset is given.
        pointer: of the calibration dataset in the request.

    Raises:
        CalibrationMissingError: there is no calibration data, and random data was not asked for.
        InvalidConfigError: the gate or a search asks for accuracy, and only random data is there to judge it; or a
            training for more than the float model can tell of random data.
    """
    if calibration:
        return
    random_data_of(config, pointer=pointer)
    _check_training(config)
    if evaluation:
        return
    problems = tuple(_accuracy_asked_for(config))
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems[:5]),
            errors=problems,
            hint="Give an evaluation dataset: random data tells nothing about accuracy.",
        )


def _check_training(config: QuantizationConfig) -> None:
    """Without a calibration dataset a network is trained on random inputs: only the float model tells what to learn."""
    problems = tuple(
        FieldProblem(pointer=f"/config/{place}", code="random-data", message=message)
        for place, message in random_data_faults(config)
    )
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems[:5]),
            errors=problems,
            hint="Give a calibration dataset, which is trained on, or take a loss of kind distillation alone.",
        )


def _accuracy_asked_for(config: QuantizationConfig) -> Iterator[FieldProblem]:
    told = "judges accuracy, and there is only random data to judge it on"

    def problem(at: str, message: str) -> FieldProblem:
        return FieldProblem(pointer=f"/config/{at}", code="random-data", message=message)

    for word in ("max_drop", "min_value", "max_value", "min_sqnr_db"):
        if getattr(config.evaluation.gate, word) is not None:
            yield problem(f"evaluation/gate/{word}", f"{word} {told}")
    for k, metric in enumerate(config.evaluation.metrics):
        if metric.label_refs():
            yield problem(f"evaluation/metrics/{k}", f"{metric.name} needs labels, and there is only random data")
    for k, algorithm in enumerate(config.algorithms):
        if isinstance(algorithm, Autopilot):
            yield problem(f"algorithms/{k}", f"autopilot {told}")
