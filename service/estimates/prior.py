"""The estimate from a job's graph, data and config only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from service.contracts.compatibility import fixed_batch
from service.contracts.config import QuantizationConfig
from service.contracts.costs import TORCH_SECONDS, CostFacts, evaluation_costs, stage_costs, wanted_patches
from service.contracts.dataset import DatasetSummary
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import MatrixKind, ModelSummary, Work
from service.contracts.specs import bits_of

START, LOAD = "start", "load"
# A process, the libraries that every job loads, and what comes of it stored; then the model, by its bytes.
_START_SECONDS, _LOAD_SECONDS, _LOAD_BYTES_PER_SECOND = 0.7, 0.1, 5e7
# Of few bits the results are worse, and advice is tried: in about a third of all jobs, for as long as the rest took.
_ADVICE, _FEW_BITS, _ADVICE_SHARE = "advice", 8, 0.3
# Scales of few bits are searched for: seconds per weight, and per layer.
_SEARCHED_WEIGHT_SECONDS, _SEARCHED_LAYER_SECONDS = 6e-7, 0.03
# Integer convolutions on ranges that are found while the model runs: how much slower that is.
_DYNAMIC, _MEASURING = 2.0, ("evaluation", "layers", "latency")
# Where no pass was timed: multiplications and bytes that a machine does in a second, and what a node costs.
_MULTIPLY_ADDS_PER_SECOND, _BYTES_PER_SECOND, _NODE_SECONDS = 3e10, 4e9, 3e-6
# A process with its libraries; and what it holds of the model's and the samples' bytes at its highest.
_BASE_BYTES = 165_000_000
_MODEL_TIMES, _SAMPLE_TIMES, _BATCH = 4.0, 1.1, 8
# Of each sample that layers are solved on, so many tensors as the largest are kept at a time.
_HELD = 2.5
# What the solvers of layers look at in one go, in float32.
_MOST_PATCH_BYTES = 160_000_000
_FINETUNING = frozenset({"adaround", "adaquant"})
# What Q/DQ pairs with names, scales and zero points add to a node; in mode static, and where weights alone have them.
_STATIC_NODE_BYTES, _NODE_BYTES = 500, 250
# What is told of the model in its own file. And per parameter, from where on a model is of float32.
_FACTS_BYTES, _HALF_BYTES = 1500, 3
# Of runs that make no model: there is nothing that could be told of it, or learned.
NOTHING_MADE_BYTES = 1.0
_FLOAT_BYTES, _NORMALIZATION_BYTES, _BIAS_BYTES = 4, 12, 8


@dataclass(frozen=True)
class Prior:
    """What a run should take."""

    stages: dict[str, float]  # seconds of each, by name, with those of starting and loading
    memory_bytes: float  # at its highest
    size_bytes: float  # of the quantized model
    timed: bool  # a forward pass of the model was timed

    @property
    def seconds(self) -> float:
        """From the run's start to its end."""
        return sum(self.stages.values())


def prior_of(
    config: QuantizationConfig,
    model: ModelSummary,
    calibration: DatasetSummary | None,
    evaluation: DatasetSummary | None,
) -> Prior:
    """The prior of a quantization.

    Args:
        config: resolved.
        model: what is quantized.
        calibration: None: none was given.
        evaluation: None: the models are compared on the calibration data.
    """
    work = model.work or _unknown_work(model)
    samples = _calibration_samples(config, calibration)
    measured = evaluation or calibration
    facts = CostFacts(
        nodes=work.nodes,
        matrices=work.matrices,
        sample_seconds=_sample_seconds(work, _scale(model, measured)) / min(fixed_batch(model), max(samples, 1)),
        calibration_samples=samples,
        measured_samples=samples if measured is None else measured.samples,
        torch_seconds=TORCH_SECONDS,
    )
    is_slow = config.mode == "dynamic" and _is_convolutional(model)
    stages = {START: _START_SECONDS, LOAD: _LOAD_SECONDS + model.size_bytes / _LOAD_BYTES_PER_SECOND}
    for name, seconds in stage_costs(config, facts):
        slower = _DYNAMIC if is_slow and name in _MEASURING else 1.0
        stages[name] = stages.get(name, 0.0) + slower * seconds
    if config.mode != "float16" and bits_of(config.weight.dtype) < _FEW_BITS:
        stages["parameters"] += _search_seconds(work)
        stages[_ADVICE] = _ADVICE_SHARE * sum(stages.values())
    return Prior(
        stages=stages,
        memory_bytes=_memory_bytes(config, model, work, samples, _scale(model, measured)),
        size_bytes=_size_bytes(config, model, work),
        timed=work.forward is not None,
    )


def prior_of_evaluation(spec: EvaluationSpec, models: Sequence[ModelSummary], data: DatasetSummary) -> Prior:
    """The prior of an evaluation of a model, beside a reference if there are two; it makes no model."""
    works = [model.work or _unknown_work(model) for model in models]
    scales = [_scale(model, data) for model in models]
    seconds = [_sample_seconds(work, scale) for work, scale in zip(works, scales, strict=True)]
    load = sum(_LOAD_SECONDS + model.size_bytes / _LOAD_BYTES_PER_SECOND for model in models)
    stages = {START: _START_SECONDS, LOAD: load, **evaluation_costs(seconds, data.samples, spec.latency_runs)}
    memory = (
        _MODEL_TIMES * model.size_bytes + _SAMPLE_TIMES * min(_BATCH, data.samples) * scale * work.activation_bytes
        for model, work, scale in zip(models, works, scales, strict=True)
    )
    timed = all(work.forward is not None for work in works)
    return Prior(stages, _BASE_BYTES + sum(memory), NOTHING_MADE_BYTES, timed)


def _unknown_work(model: ModelSummary) -> Work:
    """Of a model of which nothing but its size is known: each weight is used for some places of a sample."""
    return Work(
        multiply_adds=100 * model.parameter_count,
        activation_bytes=_FLOAT_BYTES * model.parameter_count,
        largest_activation_bytes=model.parameter_count,
        nodes=model.node_count,
        matrices=(),
    )


def _calibration_samples(config: QuantizationConfig, calibration: DatasetSummary | None) -> int:
    if calibration is None:
        return 0 if config.random_calibration is None else config.random_calibration.samples
    limit = config.calibration_samples
    return calibration.samples if limit is None else min(limit, calibration.samples)


def _sample_seconds(work: Work, scale: float) -> float:
    forward = work.forward
    if forward is not None:
        return scale * forward.seconds / forward.samples
    graph = work.multiply_adds / _MULTIPLY_ADDS_PER_SECOND + work.activation_bytes / _BYTES_PER_SECOND
    return scale * graph + _NODE_SECONDS * work.nodes


def _scale(model: ModelSummary, data: DatasetSummary | None) -> float:
    """How much larger the data's samples are than those that the model was timed with, where its axes are free."""
    forward = None if model.work is None else model.work.forward
    if forward is None or data is None or data.media is not None:
        return 1.0
    shapes = {tensor.name: tensor.shape for tensor in model.inputs}
    free = [
        prod(data.arrays[name].longest or [axis or 1 for axis in data.arrays[name].shape[1:]])
        for name, shape in shapes.items()
        if shape is not None and name in data.arrays and not all(isinstance(axis, int) for axis in shape[1:])
    ]
    return max(free) / forward.elements if free and max(free) > 0 else 1.0


def _is_convolutional(model: ModelSummary) -> bool:
    return model.op_counts.get("Conv", 0) > model.op_counts.get("MatMul", 0)


def _search_seconds(work: Work) -> float:
    weights = sum(kind.elements for kind in work.matrices)
    return _SEARCHED_WEIGHT_SECONDS * weights + _SEARCHED_LAYER_SECONDS * sum(kind.count for kind in work.matrices)


def _memory_bytes(config: QuantizationConfig, model: ModelSummary, work: Work, samples: int, scale: float) -> float:
    """A batch of samples with all that a network makes of them; and what waits before the layer that is solved."""
    # a fixed batch axis is counted in the work already, here and below
    batch = 1 if fixed_batch(model) > 1 else min(_BATCH, max(samples, 1))
    whole = _BASE_BYTES + _MODEL_TIMES * model.size_bytes + _SAMPLE_TIMES * batch * scale * work.activation_bytes
    solved = [algorithm for algorithm in config.algorithms if algorithm.method in _FINETUNING]
    if not solved or config.mode != "static":
        return whole
    used = max(min(getattr(algorithm, "data_size", None) or samples, samples) for algorithm in solved)
    passes = used / fixed_batch(model)
    patches = max((_patch_bytes(kind) for kind in work.matrices), default=0)
    return whole + _HELD * passes * scale * work.largest_activation_bytes + min(patches, _MOST_PATCH_BYTES)


def _patch_bytes(kind: MatrixKind) -> int:
    patches = wanted_patches((kind.groups, kind.outputs, kind.inputs))
    return _FLOAT_BYTES * patches * kind.groups * (kind.inputs + kind.outputs)


def _size_bytes(config: QuantizationConfig, model: ModelSummary, work: Work) -> float:
    """Weights of linear layers in their new type, with a scale per channel or block; all else as it is.

    Normalizations go into the layers before them, and biases get scales of their own where activations have them.
    """
    if config.mode == "float16":
        return model.size_bytes / 2
    spec, bits = config.weight, bits_of(config.weight.dtype)
    elements = sum(kind.elements for kind in work.matrices)
    channels = sum(kind.groups * kind.outputs * kind.count for kind in work.matrices)
    added = channels * _BIAS_BYTES if config.mode == "static" and spec.granularity != "per_tensor" else 0
    folded = channels * _NORMALIZATION_BYTES if model.op_counts.get("BatchNormalization") else 0
    # convolutions have no blocks
    if spec.granularity == "per_block" and not _is_convolutional(model):
        scales = sum(kind.elements / min(spec.block_size, kind.inputs) for kind in work.matrices)
    else:
        scales = float(len(work.matrices) if spec.granularity == "per_tensor" else channels)
    quantized = elements * bits / 8 + scales * (_FLOAT_BYTES + bits / 8)
    nodes = work.nodes * (_STATIC_NODE_BYTES if config.mode == "static" else _NODE_BYTES)
    is_half = model.size_bytes < _HALF_BYTES * model.parameter_count
    before = elements * _FLOAT_BYTES / (2 if is_half else 1)
    return max(model.size_bytes - before - folded, 0) + quantized + added + nodes + _FACTS_BYTES
