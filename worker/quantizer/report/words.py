"""The words of a report: its notes, its one sentence, why a model is no smaller, what a training came to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import onnx_ir as ir

from service.contracts.changes import NOT_REPRESENTATIVE, change_of, latency_change_of, size_change
from service.contracts.dataset import label_notes
from service.contracts.evaluation import Gate
from service.contracts.reason import Reason
from service.contracts.report import (
    AlgorithmFigures,
    Finding,
    LatencyFigures,
    LayerFigures,
    MetricFigures,
    ModelFigures,
    TrainingFigures,
)
from worker.quantizer.data import OpenDataset
from worker.quantizer.evaluation.compare import ModelComparison
from worker.quantizer.evaluation.latency import BUSY_PERCENT
from worker.quantizer.evaluation.metrics import metric_words
from worker.quantizer.evaluation.side_by_side import Source
from worker.quantizer.graph import sizes
from worker.quantizer.graph.serialized import ModelContent
from worker.quantizer.graph.values import subgraph_nodes
from worker.quantizer.plan.types import Decision, PlanLog, QuantizationPlan
from worker.quantizer.refine.draft import Case, QuantizedDraft
from worker.quantizer.report.layers import NOT_APPLICABLE, stored_bytes

# What a report says of a training in words.

_ENDED = {
    "epochs": "all its epochs were done",
    "steps": "all its steps were done",
    "seconds": "its time was up",
    "diverged": "the loss was not finite",
    "patience": "no better epoch came (patience)",
}


def training_notes(algorithms: Sequence[AlgorithmFigures]) -> list[str]:
    """One note per training: how long, on what, how fast, which epoch was taken, what ended it, which weights jump."""
    return [
        f"{figures.method} {training_words(figures.training)}{'' if figures.kept else '; it was not kept'}"
        for figures in algorithms
        if figures.training is not None
    ]


def training_words(figures: TrainingFigures) -> str:
    """The note without the name of the method."""
    last = max(figures.epochs, key=lambda epoch: epoch.epoch, default=None)
    epochs, steps = (0, 0) if last is None else (last.epoch, last.steps)
    parts = [
        f"trained {_count(epochs, 'epoch')} ({_count(steps, 'step')}) on {_count(figures.samples, 'sample')} with "
        f"{figures.validation_samples} held out ({figures.device})",
        _best(figures),
        f"learning rate {figures.learning_rate:g}",
        f"it ended because {_ENDED[figures.ended]}",
    ]
    if last is not None:
        parts.append(f"at the end {last.oscillating:.2%} of the weights were oscillating and {last.frozen:.2%} frozen")
    return "; ".join(parts)


def trained_words(algorithms: Sequence[AlgorithmFigures]) -> str:
    """For the summary: how long the network was trained; empty where it was not, or to no avail."""
    kept = [figures.training for figures in algorithms if figures.kept and figures.training is not None]
    return f"trained to epoch {kept[-1].best_epoch}" if kept and kept[-1].best_epoch else ""


def _best(figures: TrainingFigures) -> str:
    by = figures.metric or "the validation loss"
    if figures.best_epoch == 0:
        return f"no epoch was better than the network before it, by {by}"
    found = next((epoch for epoch in figures.epochs if epoch.epoch == figures.best_epoch), None)
    value = None if found is None else (found.validation_loss if figures.metric is None else found.metric)
    return f"epoch {figures.best_epoch} was the best by {by}" + ("" if value is None else f" ({value:.5g})")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


# Below this, one part in ten of the output's energy is error.
POOR_SQNR_DB = 10.0
# Nodes or tensors named in one note.
_TOLD = 3
# What a summary begins with, by source of the data.
_MEASURED_ON: dict[Source, str] = {
    "evaluation": "",
    "calibration": "on calibration data: ",
    "random": "on random data (accuracy unknown): ",
}


def report_notes(
    plan: QuantizationPlan,
    plan_log: PlanLog,
    comparison: ModelComparison,
    data: OpenDataset,
    gate: Gate,
    algorithms: Sequence[AlgorithmFigures],
) -> tuple[str, ...]:
    """Everything that the reader of a report should not have to find out alone; of size and speed: ``cost_notes``."""
    notes = [*plan_log.notes, *training_notes(algorithms)]
    notes += [*decision_notes(plan_log.decisions), *_float_bias_notes(plan, plan_log.decisions)]
    if comparison.fidelity.source == "calibration" and not gate.is_empty:
        notes.append("the gate was judged on the calibration data: give an evaluation dataset for a verdict to rely on")
    for name, array in data.summary.arrays.items():
        specs = [spec for k, spec in data.preprocessing.inputs.items() if (spec.array or k) == name]
        if array.dtype == "uint8" and specs and all(spec.is_identity for spec in specs):
            notes.append(
                f"array {name!r} is fed as stored, 0 to 255: set scale, mean and std if the model needs other values"
            )
    notes += _label_notes(comparison, data) + _metric_notes(comparison)
    if plan.is_empty:
        return tuple(notes)
    sqnr_db = comparison.fidelity.sqnr_db
    notes += [
        f"output {name!r} of the float model contains NaN or Inf: no distance is measured"
        for name in comparison.non_finite
    ]
    if sqnr_db is not None and sqnr_db < POOR_SQNR_DB:
        notes.append(f"the outputs are far from the float model's (SQNR {sqnr_db:.1f} dB)")
    return tuple(notes)


def cost_notes(plan: QuantizationPlan, latency: LatencyFigures, growth: str | None) -> tuple[str, ...]:
    """What the reader should know about size and latency.

    Args:
        plan: what was quantized.
        latency: of both models.
        growth: why the quantized model is not smaller; None: it is.
    """
    notes = []
    if not plan.is_empty and growth is not None:
        notes.append(growth)
    change, busy = latency_change_of(latency), latency.load.other_busy_percent
    if not plan.is_empty and latency.not_representative is not None:
        notes.append(f"latency is {NOT_REPRESENTATIVE}. {latency.not_representative}")
    elif not plan.is_empty and latency.verdict == "slower":
        notes.append(
            f"the quantized model is {change.words}: small layers, or many conversions between float and integers, "
            "cost more than integer kernels save"
        )
    elif not plan.is_empty and latency.verdict == "undecided":
        notes.append(f"latency difference not significant ({change.interval})")
    if busy is not None and busy >= BUSY_PERCENT:
        notes.append(
            f"other processes used {busy:.0f} % of the CPU while latency was measured: measure again on an idle "
            "machine for a narrower interval"
        )
    return tuple(notes)


def _label_notes(comparison: ModelComparison, data: OpenDataset) -> list[str]:
    """No labels, one-hot labels, and labels that are not used."""
    labels = data.summary.labels
    if data.is_random:
        return []
    if labels is None:
        return [] if comparison.quantized_set.values else list(label_notes(labels))
    if comparison.labels_used:
        return list(label_notes(labels))
    if labels.are_classes:
        return ["the labels are not used: the first output has no class scores"]
    return [
        f"the labels are not used: array {labels.array!r} ({labels.dtype}{list(labels.shape or ())}) does "
        "not contain one class number per sample; declare a metric for it, with ignore_index where it is "
        "padded"
    ]


def _metric_notes(comparison: ModelComparison) -> list[str]:
    """Metrics without a value."""
    models = (("float", comparison.float_set), ("quantized", comparison.quantized_set))
    return [
        f"metric {name} of the {word} model has no value: {why}"
        for word, measured in models
        for name, why in measured.undefined.items()
    ]


def decision_notes(decisions: Sequence[Decision]) -> list[str]:
    """What the target's rules changed: one sentence per rule and cause, with the first places."""
    groups: dict[tuple[str, str, bool], list[Decision]] = defaultdict(list)
    for decision in decisions:
        groups[decision.rule, decision.why, decision.conflict].append(decision)
    notes = []
    for (rule, why, conflict), made in groups.items():
        told = ", ".join(f"{decision.where} ({decision.what})" for decision in made[:_TOLD])
        more = f" and {len(made) - _TOLD} more" if len(made) > _TOLD else ""
        word = "could not be kept" if conflict else "changed"
        notes.append(f"target rule {rule} {word} {len(made)}: {told}{more}; {why}")
    return notes


def _float_bias_notes(plan: QuantizationPlan, decisions: Sequence[Decision]) -> list[str]:
    """Which biases stay in float; what a rule of the target decided is told there."""
    by_rule = {decision.where for decision in decisions if decision.rule == "float_bias"}
    groups: dict[Reason, list[str]] = defaultdict(list)
    for name, bias in plan.biases.items():
        if bias.reason and name not in by_rule:
            groups[bias.reason].append(name)
    notes = []
    for reason, names in groups.items():
        told = ", ".join(repr(name) for name in names[:_TOLD])
        more = f" and {len(names) - _TOLD} more" if len(names) > _TOLD else ""
        notes.append(f"node{'s' if len(names) > 1 else ''} {told}{more}: bias stays in float: {reason}")
    return notes


def nothing_quantized(*, by_selectors: bool) -> str:
    """The note of a run that changed nothing.

    Args:
        by_selectors: True if include and exclude are the cause, so that without them something would be quantized.
    """
    cause = (
        "include and exclude leave nothing to quantize" if by_selectors else "nothing in this model can be quantized"
    )
    return f"{cause}: the model is returned as it was uploaded"


def calibration_notes(case: Case) -> list[str]:
    """What the reader should know of the calibration data, the worst first."""
    config, available, wanted = case.config, case.calibration.samples, case.config.calibration_samples
    if case.calibration.is_random:
        ranges = "ranges are those of random inputs" if config.mode == "static" else "there was no data"
        told = "accuracy was measured on the evaluation data, with these ranges"
        if case.evaluation is None:
            told = "both models were compared on random inputs: every figure of fidelity is about noise"
        notes = [
            (f"RANDOM DATA, ACCURACY UNKNOWN: {ranges}, and {told}; quantize with real data before using the model")
        ]
        if case.calibration.made_up:
            shapes = ", ".join(f"{name} {list(shape)}" for name, shape in case.calibration.made_up.items())
            notes.append(f"the model leaves shapes of its inputs open; the random ones have {shapes}")
        return notes
    notes = []
    if config.random_calibration is not None:
        notes.append("random_calibration was not needed: a calibration dataset is given")
    if wanted is not None and wanted > available:
        notes.append(f"calibration_samples is {wanted}, the dataset contains {available}: all of them are used")
    return notes


def alarm_words(findings: Sequence[Finding]) -> str:
    """What a summary begins with where there are critical findings; empty where there are none."""
    critical = sum(1 for finding in findings if finding.severity == "critical")
    return f"{_count(critical, 'critical finding')}; " if critical else ""


def summary_sentence(
    plan: QuantizationPlan,
    layers: Sequence[LayerFigures],
    size_bytes: tuple[int, int],
    latency: LatencyFigures,
    comparison: ModelComparison,
    metrics: Sequence[MetricFigures],
    algorithms: Sequence[AlgorithmFigures],
    *,
    labelled: bool,
    findings: Sequence[Finding],
) -> str:
    """The report in one sentence, after the number of critical findings.

    Args:
        plan: what was quantized.
        layers: of the report.
        size_bytes: of the float and the quantized model.
        latency: of both.
        comparison: of both.
        metrics: of both.
        algorithms: what became of each.
        labelled: the data has labels.
        findings: of the report.
    """
    alarm = alarm_words(findings)
    if plan.is_empty:
        return f"{alarm}{'nothing' if alarm else 'Nothing'} to quantize: the model is returned as it was uploaded."
    parts = []
    if metrics and metrics[0].quantized is not None:
        first = metrics[0]
        told = metric_words(first.name, (first.float_, first.quantized), first.unit)
        parts.append(told if first.drop is None else f"{told} ({change_of(first).words})")
    elif comparison.fidelity.top1_agreement is not None and comparison.tells_classes_apart:
        parts.append(f"top-1 agreement {comparison.fidelity.top1_agreement:.2f} %")
    if not metrics and comparison.fidelity.source != "random":
        parts.append(f"accuracy not measured ({'labels not used' if labelled else 'no labels'})")
    if comparison.fidelity.sqnr_db is not None:
        parts.append(f"SQNR {comparison.fidelity.sqnr_db:.1f} dB")
    parts.append(f"size {size_change(*size_bytes).words}")
    parts.append(f"latency {latency_change_of(latency).words}")
    quantized = sum(len(layer.nodes) for layer in layers if layer.reason is None)
    able = sum(len(layer.nodes) for layer in layers if layer.reason_code != NOT_APPLICABLE.code)
    trained = trained_words(algorithms)
    told = f"{quantized} of {able} nodes quantized{f', {trained}' if trained else ''}"
    return f"{alarm}{_MEASURED_ON[comparison.fidelity.source]}{', '.join(parts)}; {told}."


def large_note(content: ModelContent) -> str | None:
    """What to say of a model that was measured from files, as it is too large to be held; None of any other."""
    if content.path is None:
        return None
    whose = "neither model" if content.size_bytes > sizes.PACKED_BYTES else "not the float model"
    told = f"weights are memory-mapped and read again for each run, and {whose} packs them for kernels"
    beside = "" if content.data is None else f"; its weights are in {content.data.name}, keep it next to the model"
    return f"the model is large: {told}, so figures elsewhere may differ{beside}"


# Why a quantized model is no smaller than the float one.


def growth_words(done: QuantizedDraft, before: ModelFigures, after: ModelFigures) -> str | None:
    """The causes with their bytes, the largest first; None for a model that became smaller.

    Constants are counted in the prepared model, from which the quantized one is made. What the file holds beside
    constants is its structure: nodes, names, shapes.
    """
    if after.size_bytes < before.size_bytes:
        return None
    prepared, emitted = _initializers(done.prepared.model), _initializers(done.emitted.model)
    was, now = (sum(map(stored_bytes, values.values())) for values in (prepared, emitted))
    planned = [name for name in done.plan.weights if name in prepared]
    twice = sum(stored_bytes(prepared[name]) for name in planned if name in emitted and _is_float(emitted[name]))
    inside = _bytes_inside(done.emitted.model.graph)
    saved = sum(stored_bytes(prepared[name]) for name in planned if name not in emitted)
    structure = (after.size_bytes - now) - (before.size_bytes - min(was, before.size_bytes))
    copied = max(0, was - before.size_bytes)
    causes = [
        (twice, f"weights of {twice} bytes are stored twice: as integers, and as floats for nodes that stay in float"),
        (inside, f"{inside} bytes of constants are read inside bodies of Loop, If or Scan, which need them in float"),
        (copied, f"preparation made the constants {copied} bytes larger than the whole float file"),
        (
            structure,
            f"Q/DQ nodes, names and shapes add {structure} bytes, while weights of {saved} bytes were quantized",
        ),
    ]
    told = [words for size, words in sorted(causes, key=lambda cause: -cause[0]) if size > 0]
    return f"the quantized model is not smaller: {'; '.join(told) or 'nothing in it needs fewer bytes'}"


def _initializers(model: ir.Model) -> dict[str, ir.Value]:
    graphs = (model.graph, *model.graph.subgraphs())
    return {name: value for graph in graphs for name, value in graph.initializers.items()}


def _is_float(value: ir.Value) -> bool:
    return value.dtype is not None and value.dtype.is_floating_point()


def _bytes_inside(graph: ir.Graph) -> int:
    """Bytes of floats that nodes of sub-graphs read as they are."""
    read = {value for node in subgraph_nodes(graph) for value in node.inputs if value is not None}
    return sum(stored_bytes(value) for value in read if value.const_value is not None and _is_float(value))
