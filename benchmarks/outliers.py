"""Outlier channels in real models: how many tensors are named, and what outlier_channels does.

The models as they are, and with one channel planted, 100 times as wide as it was and read with a hundredth of the
weight.

usage: python -m benchmarks.outliers [WORD ...]      (models whose names hold a word; needs QUANTMILL_DATA)
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from benchmarks.cases import CASES, THREADS, Case, data_folder, source
from service.contracts.config import parse_config
from service.contracts.report import Report
from worker.quantizer.equalization.channel_groups import follow
from worker.quantizer.equalization.channel_scaling import scale_layers
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.graph.values import Names, constant, name_of
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.modes.planning import prepare_model
from worker.quantizer.pipeline import quantize
from worker.quantizer.preparation.affine import replace_constant
from worker.quantizer.run.interface import SilentRun

PRESETS = ("int8", "int8_per_tensor", "xint8")
_BY = 100.0
_QUICK = {"advice_seconds": 0, "latency_runs": 1, "layer_samples": 1}


def planted(path: Path, folder: Path) -> Path | None:
    """The same function with a channel that is ``_BY`` times as wide; None if no channel can be made so."""
    prepared, _ = prepare_model(open_model(path).model, parse_config({"preset": "int8"}))
    graph = prepared.graph
    if not _between_layers(graph) and not _behind_normalization(graph):
        return None
    made = folder / path.name
    made.write_bytes(to_bytes(prepared.model))
    return made


def _between_layers(graph: ir.Graph) -> bool:
    """One channel of the layer in the middle of those whose channels no upper limit cuts off."""
    flow = follow(graph)
    held = {0, *(int(group) for limit in flow.limits if 0 < limit.high < np.inf for group in limit.channels.flat)}
    layers = [layer for layer in flow.layers if layer.is_linear and not held & set(layer.outputs.tolist())]
    layers = [layer for layer in layers if layer.outputs.size > 8]
    if not layers:
        return False
    outputs, factors = layers[len(layers) // 2].outputs, np.ones(flow.groups)
    factors[outputs[outputs.size // 2]] = _BY
    scale_layers(graph, flow, factors)
    return True


def _behind_normalization(graph: ir.Graph) -> bool:
    """One channel of the first LayerNormalization that products with weights alone read."""
    for norm in graph:
        readers = [usage.node for usage in norm.outputs[0].uses()]
        if norm.op_type != "LayerNormalization" or not readers:
            continue
        if any(node.op_type != "MatMul" or constant(node.inputs[1]) is None for node in readers):
            continue
        names = Names(graph)
        for node, index, factor in [(norm, 1, _BY), (norm, 2, _BY), *((node, 1, 1 / _BY) for node in readers)]:
            value = node.inputs[index]
            found = constant(value)
            if value is not None and found is not None:
                array = np.array(found)
                array[3] *= factor
                replace_constant(graph, node, index, name_of(value), array, names)
        return True
    return False


def measured(path: Path, case: Case, folder: Path, document: dict[str, Any]) -> Report:
    config = parse_config({**document, "evaluation": _QUICK})
    calibration, evaluation = source(folder, case.calibration), source(folder, case.evaluation)
    return quantize(path, config, calibration, evaluation, run=SilentRun(), threads=THREADS).report


def rows(name: str, path: Path, case: Case, folder: Path) -> Iterator[str]:
    for preset in PRESETS:
        algorithms = [found.model_dump() for found in parse_config({"preset": preset}).algorithms]
        before = measured(path, case, folder, {"preset": preset})
        treated = {"preset": preset, "algorithms": [{"method": "outlier_channels"}, *algorithms]}
        after = measured(path, case, folder, treated)
        codes = [finding.code for finding in before.findings]
        named = f"{codes.count('outlier-channels')} / {codes.count('outlier-weight-channels')}"
        cells = [f"{found.quantized.metrics['top1']:.2f} ({found.fidelity.sqnr_db} dB)" for found in (before, after)]
        outcome = after.algorithms[0]
        fate = f"{'kept' if outcome.kept else 'nothing'}: {outcome.summary}"
        yield f"| {name} | {preset} | {named} | {before.float_.metrics['top1']:.2f} | {' | '.join(cells)} | {fate} |"


def main() -> None:
    folder, words = data_folder(), sys.argv[1:]
    print("| model | preset | named: activations / weights | float | without | with outlier_channels | what became |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as scratch:
        for case in CASES:
            if words and not any(word in case.name for word in words):
                continue
            model = folder / case.model
            paths = {case.name: model, f"{case.name}, planted": planted(model, Path(scratch))}
            for name, path in paths.items():
                for row in rows(name, path, case, folder) if path is not None else ():
                    print(row, flush=True)


if __name__ == "__main__":
    main()
