"""What the stages of a quantization should cost, in seconds: facts of the config, the model and the data.

Shapes of weights are (groups, outputs per group, inputs per group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

from service.contracts.algorithms import Algorithm
from service.contracts.config import QuantizationConfig
from service.contracts.model import MatrixKind
from service.contracts.specs import AutoCalibration

Shape = tuple[int, int, int]

# Calibration samples that candidates of calibration method auto are tried on, at most.
TRIAL_SAMPLES = 32
# Patches: enough to tell the directions of the inputs apart, and more of them where they are cheap.
_PATCHES_PER_INPUT, _FEWEST_PATCHES, _CHEAP_ELEMENTS = 10, 4000, 2_000_000
# Elements of the patches that are looked at at once.
_MOST_ELEMENTS = 40_000_000
# A step of the gradient solver takes as long as so many multiplications, however small the layer.
_STEP = 3e7
_FEWEST_JUDGING, _MOST_JUDGING, _JUDGING_PART = 4, 64, 6


def moments_effort(shape: Shape, patches: int) -> float:
    """Multiplications that a layer takes from second moments of so many patches."""
    groups, outputs, inputs = shape
    # moments and products; inverses in float64; sweeps from two starts, after each round, and one for each ridge
    return groups * inputs * (2.0 * patches * (inputs + outputs) + 17.0 * inputs * inputs + 17.0 * inputs * outputs)


def gradients_effort(shape: Shape, positions_per_sample: float, steps: int, batch_size: int) -> float:
    """Multiplications that a layer takes by gradients.

    Args:
        shape: of the layer.
        positions_per_sample: patches that one sample has.
        steps: of the gradient solver.
        batch_size: samples in a step.
    """
    groups, outputs, inputs = shape
    # forward, and backward by inputs and by weights, at half the speed of plain products
    return steps * (6.0 * batch_size * positions_per_sample * groups * inputs * outputs + _STEP)


def wanted_patches(shape: Shape) -> int:
    """Patches that moments are taken from."""
    groups, outputs, inputs = shape
    one = groups * (inputs + outputs)
    wanted = max(_PATCHES_PER_INPUT * inputs + _FEWEST_PATCHES, _CHEAP_ELEMENTS // one)
    return min(wanted, max(_MOST_ELEMENTS // one, _FEWEST_PATCHES))


def spread(available: int, wanted: int) -> list[int]:
    """Ascending numbers of ``wanted`` out of ``available`` samples, or of all if there are fewer.

    One of each part of equal size, as data is often stored class by class; at random in its part, as classes may also
    take turns. The same for the same numbers.
    """
    count, random = min(available, wanted), Random(available)  # noqa: S311 - nothing secret
    bounds = [k * available // count for k in range(count + 1)] if count else []
    return [low + int(random.random() * (high - low)) for low, high in pairwise(bounds)]


def held_back_samples(available: int) -> list[int]:
    """Numbers of those of ``available`` calibration samples that are for judging: a sixth of them, at most 64.

    With fewer than 24 samples all of them are used for both.
    """
    part = min(available // _JUDGING_PART, _MOST_JUDGING)
    return spread(available, part if part >= _FEWEST_JUDGING else available)


# Runs are repeated until their interval is narrow; one of a single sample takes longer than its part of a batch.
_LATENCY_TIMES, _LATENCY_SECONDS = 8, 3.0
_WARM_UP_RUNS = 5
# Seconds per node of the graph, whatever it computes.
_NODE_PREPARED, _NODE_PLANNED, _NODE_EMITTED, _NODE_FILLED = 3e-4, 1e-4, 2e-4, 1e-4
# Forward passes of the float model that a sample is worth.
_STATISTICS, _EVALUATION, _LAYERS, _ACCEPTANCE = 3.0, 1.9, 9.0, 3.0
# Of a sample whatever the network: its metrics, and what chance makes of them.
_METRICS_SECONDS = 1e-4
# A session of a network of so many seconds per node has to be made before any pass.
_SESSION_NODE = 3e-4
# That the checks before all work run, all alternatives counted.
_EXAMINED_SAMPLES = 220
_WALK_PASSES = 3.0
_BACKWARD_PASSES = 9.0
# Samples that carried errors are worth, at most.
_CARRIED = 112
# Of the moments solver, whose matrices are small.
MULTIPLICATIONS_PER_SECOND = 2.2e10
# A process that runs a few samples with and without the runtime's optimizations, which is slower.
_PROCESS_SECONDS, _BOTH_WAYS = 0.3, 16
# Until torch is loaded, where it is not.
TORCH_SECONDS = 3.0


@dataclass(frozen=True)
class CostFacts:
    """What the cost of a stage depends on beside the config."""

    nodes: int  # of the graph
    matrices: tuple[MatrixKind, ...]  # shapes of its linear layers
    sample_seconds: float  # of the float model for a sample, of a batch where it takes batches
    calibration_samples: int  # that there are
    measured_samples: int  # on which the models are compared
    torch_seconds: float  # until torch is loaded; 0 where it is

    def passes(self, algorithm: Algorithm, passes: float) -> float:
        """Seconds of so many forward passes of each sample that the algorithm uses."""
        return self.samples_of(algorithm) * self.sample_seconds * passes

    def samples_of(self, algorithm: Algorithm) -> int:
        """Samples that the algorithm uses."""
        return min(getattr(algorithm, "data_size", None) or self.calibration_samples, self.calibration_samples)


def stage_costs(config: QuantizationConfig, facts: CostFacts) -> list[tuple[str, float]]:
    """Name and seconds of each stage that comes behind loading, in order."""
    return list(_stages(config, facts))


def evaluation_costs(sample_seconds: Iterable[float], samples: int, latency_runs: int) -> dict[str, float]:
    """Seconds of the stages of an evaluation, by name.

    Args:
        sample_seconds: of each of its models for a sample.
        samples: that they are measured on.
        latency_runs: of each of them, at least.
    """
    one = sum(sample_seconds)
    runs = _WARM_UP_RUNS + _LATENCY_TIMES * latency_runs
    return {"evaluation": samples * (one + _METRICS_SECONDS), "latency": min(runs * one, _LATENCY_SECONDS)}


def _stages(config: QuantizationConfig, facts: CostFacts) -> Iterator[tuple[str, float]]:
    nodes, one = facts.nodes, facts.sample_seconds
    session = _SESSION_NODE * nodes
    yield "sanity", session + _EXAMINED_SAMPLES * one
    yield "prepare", _NODE_PREPARED * nodes
    yield "plan", _NODE_PLANNED * nodes + 2 * one
    if config.mode == "static":
        yield from _calibration(config, facts)
        yield "statistics", session + facts.calibration_samples * one * _STATISTICS
        yield "parameters", _NODE_FILLED * nodes
        yield from _algorithms(config, facts)
    elif config.mode != "float16":
        yield "parameters", _NODE_FILLED * nodes
    measured = facts.measured_samples
    layer_samples = min(config.evaluation.layer_samples, measured)
    drafts = 1 + len(config.algorithms)
    runs = 2 * (_WARM_UP_RUNS + _LATENCY_TIMES * config.evaluation.latency_runs)
    yield "emit", _NODE_EMITTED * nodes
    yield "runtime_check", _PROCESS_SECONDS + 2 * session + _BOTH_WAYS * one
    yield "evaluation", session + measured * (one * _EVALUATION + _METRICS_SECONDS)
    yield "layers", drafts * (2 * session + layer_samples * one * _LAYERS)
    yield "latency", min(runs * one, _LATENCY_SECONDS)


def _calibration(config: QuantizationConfig, facts: CostFacts) -> Iterator[tuple[str, float]]:
    """A pass that serves all candidates, and a session and some samples for each."""
    method = config.activation.calibration
    if isinstance(method, AutoCalibration):
        samples = min(facts.calibration_samples, TRIAL_SAMPLES) * _ACCEPTANCE
        session = _SESSION_NODE * facts.nodes
        each = session + samples * facts.sample_seconds
        seen = facts.calibration_samples * facts.sample_seconds * _STATISTICS
        yield "calibration", session + seen + len(method.candidates) * each


def _algorithms(config: QuantizationConfig, facts: CostFacts) -> Iterator[tuple[str, float]]:
    ways = 1  # of those before: with and without each that is judged at the end
    for algorithm in config.algorithms:
        cost = _COSTS.get(algorithm.method, _walk)
        made = sum(cost(variant, facts) + _NODE_FILLED * facts.nodes for variant in algorithm.variants())
        yield algorithm.method, ways * made
        if algorithm.is_judged:
            judged = len(held_back_samples(facts.calibration_samples))
            acceptance = 2 * _SESSION_NODE * facts.nodes + judged * facts.sample_seconds * _ACCEPTANCE
            yield f"{algorithm.method} acceptance", ways * acceptance
        if algorithm.accept in ("if_better_at_end", "reconsidered"):
            ways *= 2


def _walk(algorithm: Algorithm, facts: CostFacts) -> float:
    """Both networks run layer by layer."""
    return facts.passes(algorithm, _WALK_PASSES)


def _bias_correction(algorithm: Any, facts: CostFacts) -> float:
    """In closed form, from statistics that are there already; or by walking."""
    return _walk(algorithm, facts) if algorithm.mode == "full" else 0.0


def _equalization(algorithm: Algorithm, facts: CostFacts) -> float:
    """Ranges are taken anew behind it."""
    return facts.passes(algorithm, _STATISTICS)


def _finetuning(algorithm: Any, facts: CostFacts) -> float:
    walked = _walk(algorithm, facts)
    if algorithm.solver == "moments":
        seconds = sum(map(_moments, facts.matrices)) / MULTIPLICATIONS_PER_SECOND
        limit = algorithm.max_solver_seconds
        return 0.0 if limit is not None and seconds > limit else walked + seconds
    steps = algorithm.num_iterations * algorithm.batch_size * facts.sample_seconds * _BACKWARD_PASSES
    return float(walked + steps + facts.torch_seconds)


def _moments(kind: MatrixKind) -> float:
    shape = kind.groups, kind.outputs, kind.inputs
    return kind.count * moments_effort(shape, wanted_patches(shape))


def _training(algorithm: Any, facts: CostFacts) -> float:
    """Steps of its batch size, within its budget; and a validation behind each epoch."""
    samples = facts.samples_of(algorithm) * (1.0 - algorithm.validation_share) + algorithm.generated_samples
    steps_per_epoch = max(samples / algorithm.batch_size, 1.0)
    limits = [algorithm.steps, None if algorithm.epochs is None else algorithm.epochs * steps_per_epoch]
    steps = min((limit for limit in limits if limit is not None), default=steps_per_epoch)
    seconds = float(steps * algorithm.batch_size * facts.sample_seconds * _BACKWARD_PASSES)
    return facts.torch_seconds + (seconds if algorithm.seconds is None else min(seconds, algorithm.seconds))


def _search(algorithm: Any, facts: CostFacts) -> float:
    """A search goes on until its time is over, where it has any."""
    found = 20 * facts.passes(algorithm, _STATISTICS)
    limit = algorithm.budget.max_seconds
    return found if limit is None else min(found, float(limit))


def _selective(algorithm: Any, facts: CostFacts) -> float:
    """Errors travel through half of the network one by one, in pieces of it; the whole runs beside them."""
    return (
        min(facts.calibration_samples, _CARRIED) * facts.sample_seconds * _STATISTICS + 4 * _SESSION_NODE * facts.nodes
    )


_COSTS: dict[str, Callable[[Any, CostFacts], float]] = {
    "cross_layer_equalization": _equalization,
    "smooth_quant": _equalization,
    "awq": _equalization,
    "outlier_channels": _equalization,
    "bias_correction": _bias_correction,
    "adaround": _finetuning,
    "adaquant": _finetuning,
    "qat": _training,
    "autopilot": _search,
    "mixed_precision": _search,
    "selective_precision": _selective,
}
