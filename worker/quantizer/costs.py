"""What the phases of a run should cost, in seconds: facts of the config, the model and the data, and one measurement.

The measure is a forward pass of the float model, taken on the run's own machine with its own data. How many of them a
phase is worth was found on the labelled models that ``benchmarks/progress.py`` runs; a phase that tells how far it has
come corrects what is wrong with that soon.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import onnx_ir as ir

from service.contracts.algorithms import Algorithm
from service.contracts.config import QuantizationConfig
from worker.quantizer.data.dataset import choose_batch_size
from worker.quantizer.finetune.moments.solver import moments_effort, wanted_patches
from worker.quantizer.graph.values import is_constant
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.judge import held_back_samples
from worker.quantizer.run.forecast import Phase
from worker.quantizer.run.interface import Run

_MEASURED_BATCH, _FEWEST_RUNS, _MOST_RUNS, _MEASURED_SECONDS = 8, 2, 4, 0.25
_WARM_UP_RUNS = 5
# Runs are repeated until their interval is narrow; one of a single sample takes longer than its part of a batch.
_LATENCY_TIMES, _LATENCY_SECONDS = 8, 3.0
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
# Of the moments solver, whose matrices are small.
_MULTIPLICATIONS_PER_SECOND = 2.2e10
# Until torch is loaded, where it is not.
_TORCH_SECONDS = 3.0


def forward_seconds(case: Case, run: Run) -> float:
    """Seconds that the float model takes for a sample, of a batch where it takes batches; the fastest run counts.

    Raises:
        EngineError: the runtime failed.
        CanceledError: the run was canceled.
    """
    data = case.measured_on
    size = choose_batch_size(case.inputs, data, _MEASURED_BATCH)
    batch = next(iter(data.batches(case.inputs, size, limit=size)))
    taken: list[float] = []
    while len(taken) < _FEWEST_RUNS or (len(taken) < _MOST_RUNS and sum(taken) < _MEASURED_SECONDS):
        run.check()
        begin = time.perf_counter()
        case.float_session.run(batch.feeds, start=batch.start)
        taken.append(time.perf_counter() - begin)
    return min(taken) / max(batch.valid, 1)


def expected_phases(case: Case, *, graph: ir.Graph, sample_seconds: float) -> list[Phase]:
    """What comes behind loading, in order.

    Args:
        case: what is quantized.
        graph: as it was uploaded.
        sample_seconds: of ``forward_seconds``.
    """
    config, nodes = case.config, graph.num_nodes()
    session = _SESSION_NODE * nodes
    phases = [
        Phase("sanity", session + _EXAMINED_SAMPLES * sample_seconds),
        Phase("prepare", _NODE_PREPARED * nodes),
        Phase("plan", _NODE_PLANNED * nodes + 2 * sample_seconds),
    ]
    if config.mode == "static":
        statistics = session + case.calibration_samples * sample_seconds * _STATISTICS
        phases += [Phase("statistics", statistics), Phase("parameters", _NODE_FILLED * nodes)]
        phases += _algorithms(config, _Job(case.calibration_samples, sample_seconds, graph))
    elif config.mode != "float16":
        phases.append(Phase("parameters", _NODE_FILLED * nodes))
    measured = case.measured_on.samples
    layer_samples = min(config.evaluation.layer_samples, measured)
    drafts = 1 + len(config.algorithms)
    runs = 2 * (_WARM_UP_RUNS + _LATENCY_TIMES * config.evaluation.latency_runs)
    return [
        *phases,
        Phase("emit", _NODE_EMITTED * nodes),
        Phase("evaluation", session + measured * (sample_seconds * _EVALUATION + _METRICS_SECONDS)),
        Phase("layers", drafts * (2 * session + layer_samples * sample_seconds * _LAYERS)),
        Phase("latency", min(runs * sample_seconds, _LATENCY_SECONDS)),
    ]


@dataclass(frozen=True)
class _Job:
    """What the cost of an algorithm depends on beside its settings.

    Attributes:
        samples: of the calibration.
        sample_seconds: of the float model.
        graph: as it was uploaded.
    """

    samples: int
    sample_seconds: float
    graph: ir.Graph

    def passes(self, algorithm: Algorithm, passes: float) -> float:
        """Seconds of so many forward passes of each sample that the algorithm uses."""
        return self.samples_of(algorithm) * self.sample_seconds * passes

    def samples_of(self, algorithm: Algorithm) -> int:
        """Samples that the algorithm uses."""
        return min(getattr(algorithm, "data_size", None) or self.samples, self.samples)


def _algorithms(config: QuantizationConfig, job: _Job) -> Iterator[Phase]:
    nodes = job.graph.num_nodes()
    for algorithm in config.algorithms:
        cost = _COSTS.get(algorithm.method, _walk)
        yield Phase(algorithm.method, cost(algorithm, job) + _NODE_FILLED * nodes)
        if algorithm.accept == "if_better":
            judged = held_back_samples(job.samples)
            acceptance = 2 * _SESSION_NODE * nodes + judged * job.sample_seconds * _ACCEPTANCE
            yield Phase(f"{algorithm.method} acceptance", acceptance)


def _walk(algorithm: Algorithm, job: _Job) -> float:
    """Both networks run layer by layer."""
    return job.passes(algorithm, _WALK_PASSES)


def _bias_correction(algorithm: Any, job: _Job) -> float:
    """In closed form, from statistics that are there already; or by walking."""
    return _walk(algorithm, job) if algorithm.mode == "full" else 0.0


def _equalization(algorithm: Algorithm, job: _Job) -> float:
    """Ranges are taken anew behind it."""
    return job.passes(algorithm, _STATISTICS)


def _finetuning(algorithm: Any, job: _Job) -> float:
    walked = _walk(algorithm, job)
    if algorithm.solver == "moments":
        efforts = (moments_effort(shape, wanted_patches(shape)) for shape in _matrices(job.graph))
        return walked + sum(efforts) / _MULTIPLICATIONS_PER_SECOND
    steps = algorithm.num_iterations * algorithm.batch_size * job.sample_seconds * _BACKWARD_PASSES
    return float(walked + steps + _torch())


def _matrices(graph: ir.Graph) -> Iterator[tuple[int, int, int]]:
    """Groups, outputs per group and inputs per group of every linear node with a constant weight."""
    for node in graph:
        weight = node.inputs[1] if node.op_type in ("Conv", "Gemm", "MatMul") and len(node.inputs) > 1 else None
        if weight is None or not is_constant(weight) or weight.shape is None or len(weight.shape) < 2:
            continue
        dims = [int(dim) for dim in weight.shape.numpy()]
        if node.op_type != "Conv":
            yield 1, dims[-1], dims[-2]
            continue
        groups = node.attributes.get_int("group", 1)
        yield groups, max(dims[0] // groups, 1), prod(dims[1:])


def _training(algorithm: Any, job: _Job) -> float:
    """Steps of its batch size, within its budget; and a validation behind each epoch."""
    samples = job.samples_of(algorithm) * (1.0 - algorithm.validation_share)
    steps_per_epoch = max(samples / algorithm.batch_size, 1.0)
    limits = [algorithm.steps, None if algorithm.epochs is None else algorithm.epochs * steps_per_epoch]
    steps = min((limit for limit in limits if limit is not None), default=steps_per_epoch)
    seconds = float(steps * algorithm.batch_size * job.sample_seconds * _BACKWARD_PASSES)
    return _torch() + (seconds if algorithm.seconds is None else min(seconds, algorithm.seconds))


def _search(algorithm: Any, job: _Job) -> float:
    """A search goes on until its time is over, where it has any."""
    found = 20 * job.passes(algorithm, _STATISTICS)
    limit = algorithm.budget.max_seconds
    return found if limit is None else min(found, float(limit))


def _torch() -> float:
    return 0.0 if "torch" in sys.modules else _TORCH_SECONDS


_COSTS: dict[str, Callable[[Any, _Job], float]] = {
    "cross_layer_equalization": _equalization,
    "smooth_quant": _equalization,
    "bias_correction": _bias_correction,
    "adaround": _finetuning,
    "adaquant": _finetuning,
    "qat": _training,
    "autopilot": _search,
    "mixed_precision": _search,
}
