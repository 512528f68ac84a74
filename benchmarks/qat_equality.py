"""What is trained beside what is emitted: the twin in torch against the model in onnxruntime.

A few steps train the twin of a calibrated network; what it writes is emitted. Then both are compared:

- "metric": top-1 of the emitted file in onnxruntime, as users run it (graph optimizations on), and of the twin, on the
  whole evaluation set. Goal: 0.2 points.
- "worst layer": every tensor that is rounded, before its rounding, in the emitted file (optimizations off) and in the
  twin, which is handed onnxruntime's rounded tensors for all that a layer reads: so a difference is the layer's own.
  Both are cut off where the grid ends. SQNR of the worst one, "inf" where all are the same; goal: 60 dB.

A network that onnxruntime refuses is told as such.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES, THREADS, W4A4, case_of, data_folder, source

RECIPES: dict[str, dict[str, Any]] = {
    "int8": {"preset": "int8", "algorithms": []},
    "XINT8": {"preset": "xint8", "algorithms": []},
    "W4A4": {**W4A4, "algorithms": []},
}
METRIC_GOAL_POINTS, LAYER_GOAL_DB = 0.2, 60.0
_STEPS, _BATCH, _LAYER_SAMPLES = 8, 16, 16


@dataclass(frozen=True)
class _Calibrated:
    """A calibrated network and its data."""

    draft: Any
    config: Any
    inputs: Any
    calibration: Any
    evaluation: Any


@dataclass(frozen=True)
class _Run:
    """One batch in the emitted file: what is fed, and by planned tensor what goes into its pair and comes out of it."""

    feeds: Mapping[str, Any]
    raw: Mapping[str, Any]
    rounded: Mapping[str, Any]


def measure(name: str, recipe: str) -> dict[str, Any]:
    """The figures of one row."""
    import torch

    from service.contracts.errors import UnsupportedModelError
    from worker.quantizer.autodiff.program import repeatable

    found = _calibrated(name, recipe)
    with repeatable(THREADS):
        networks = _trained(found)
        written = networks.twin.write().on_target(found.config)
        networks.twin.follow(written)
        try:
            with torch.no_grad():
                emitted, trained = _top1(written, networks.twin, found)
                layers = _layers(written, found)
        except UnsupportedModelError as error:
            return {"refused": str(error)}
    worst = min(layers, key=lambda tensor: layers[tensor])
    return {"emitted": emitted, "trained": trained, "layers": len(layers), "worst": worst, "sqnr_db": layers[worst]}


def _calibrated(name: str, recipe: str) -> _Calibrated:
    """The network as the engine calibrates it."""
    from service.contracts.config import parse_config
    from worker.quantizer.data import open_dataset
    from worker.quantizer.evaluation.metrics import Metrics
    from worker.quantizer.intake.inspect import open_model
    from worker.quantizer.modes.planning import plan_model, prepare_model
    from worker.quantizer.modes.registry import MODES
    from worker.quantizer.refine.draft import Case, Draft
    from worker.quantizer.run.interface import SilentRun
    from worker.quantizer.run.services import Services

    folder, files, config = data_folder(), case_of(name), parse_config(RECIPES[recipe])
    sources = source(folder, files.calibration), source(folder, files.evaluation)
    sets = [open_dataset(Path(data.path), data.preprocessing) for data in sources]
    uploaded = open_model(folder / files.model)
    session = uploaded.session(threads=THREADS, what="float model")
    metrics = Metrics(config.evaluation, uploaded.summary.outputs, graphs={}, functions=None, threads=THREADS)
    case = Case(config, uploaded.summary, sets[0], sets[1], session, metrics=metrics)
    prepared, _ = prepare_model(uploaded.model, config)
    planned = plan_model(prepared, config)
    draft = Draft(prepared, planned.plan, planned.plan_log)
    filled = MODES[config.mode].fill(draft, case, Services(SilentRun(), THREADS))
    return _Calibrated(filled.draft, config, uploaded.summary.inputs, sets[0], sets[1])


def _trained(found: _Calibrated) -> Any:
    """The twin after some steps, so that every parameter has moved."""
    import torch

    from service.contracts.algorithms.training import Optimizer, Schedule
    from worker.quantizer.training.network import Networks
    from worker.quantizer.training.optimizer import ScheduledOptimizer, peak_of

    networks = Networks(found.draft, (), (), device=torch.device("cpu"))
    spec = Optimizer()
    mover = ScheduledOptimizer.of(networks.twin, spec, Schedule(), 1.0, peak_of(spec))
    for number, batch in enumerate(_batches(found.calibration, found.inputs, _BATCH * _STEPS)):
        student, teacher = networks.both(batch.feeds)
        pairs = [(made, teacher.outputs[name]) for name, made in student.outputs.items()]
        loss = sum(((made - wanted).square().mean() / wanted.var() for made, wanted in pairs), torch.zeros(()))
        loss.backward()  # type: ignore[no-untyped-call]
        mover.step(number, _STEPS)
    return networks


def _batches(data: Any, inputs: Any, limit: int | None = None) -> Iterator[Any]:
    from worker.quantizer.data import choose_batch_size

    return iter(data.batches(inputs, choose_batch_size(inputs, data, _BATCH), limit=limit))


def _top1(written: Any, twin: Any, found: _Calibrated) -> tuple[float, float]:
    """Percent: of the emitted file and of the twin."""
    import torch

    session = written.session(THREADS)
    right, samples = [0, 0], 0
    for batch in _batches(found.evaluation, found.inputs):
        output = session.output_names[0]
        made = twin({name: torch.from_numpy(array) for name, array in batch.feeds.items()})[output].numpy()
        for k, scores in enumerate((session.run(batch.feeds, [output])[0], made)):
            chosen = scores[: batch.valid].reshape(batch.valid, -1).argmax(axis=1)
            right[k] += int((chosen == batch.labels[: batch.valid]).sum())
        samples += batch.valid
    return 100.0 * right[0] / samples, 100.0 * right[1] / samples


def _layers(written: Any, found: _Calibrated) -> dict[str, float]:
    """SQNR in dB by rounded tensor, before its rounding; infinite where both are the same."""
    import numpy as np
    import torch

    from worker.quantizer.training.twin import Twin

    limits = _limits(written.plan)
    signal: dict[str, float] = {}
    noise: dict[str, float] = {}

    class Forced(Twin):
        """A twin that goes on with what onnxruntime has rounded."""

        def _round(self, name: str, tensor: torch.Tensor, known: dict[str, torch.Tensor]) -> None:
            super()._round(name, tensor, known)
            key = self._operands.rounded(name)
            if name in now.raw:
                low, high = limits.get(name, (-np.inf, np.inf))
                expected = np.clip(now.raw[name].astype(np.float64), low, high)
                difference = np.clip(tensor.numpy(), low, high) - expected
                signal[name] = signal.get(name, 0.0) + float((expected**2).sum())
                noise[name] = noise.get(name, 0.0) + float((difference**2).sum())
            if key is not None and name in now.rounded:
                known[key] = torch.from_numpy(now.rounded[name])

    twin = Forced(written, device=torch.device("cpu"))
    for now in _by_runtime(written, found):
        twin({name: torch.from_numpy(array) for name, array in now.feeds.items()})
    return {
        name: 10.0 * float(np.log10(signal[name] / noise[name])) if noise[name] > 0 else float("inf")
        for name in signal
        if signal[name] > 0
    }


def _limits(plan: Any) -> dict[str, tuple[float, float]]:
    """Smallest and largest value of each rounded tensor's grid.

    Beyond them rounding makes all values the same, which is why ``emit`` leaves a Relu out that they imply.
    """
    found = {}
    for tensor, entry in plan.activations.items():
        grid = entry.quantization
        ends = [(limit - grid.zero_point.astype(float)) * grid.scale for limit in grid.limits]
        found[tensor] = float(ends[0].min()), float(ends[1].max())
    return found


def _by_runtime(written: Any, found: _Calibrated) -> Iterator[_Run]:
    """Batches of calibration samples, and the tensors of the emitted file: as they are made, and rounded."""
    import onnxruntime as ort

    from worker.quantizer.graph.serialized import to_bytes
    from worker.quantizer.graph.values import name_of
    from worker.quantizer.runtime.session import session_options

    emitted = written.emitted()
    graph = emitted.model.graph
    values = {name_of(value): value for node in graph for value in node.outputs if value.name}
    outputs = {name_of(value) for value in graph.outputs}
    raw = {name: name for name in outputs}
    for tensor, restored in emitted.restored.items():
        # What is rounded of an input is the input itself, in both; a pool of 4 bits has no pair of its own.
        has_pair = restored in values and (restored != tensor or tensor in outputs)
        if has_pair and (name := _quantized_value(values[restored])) in values:
            raw[tensor] = name
    rounded = {tensor: name for tensor, name in emitted.restored.items() if name in values}
    wanted = sorted({*raw.values(), *rounded.values()})
    graph.outputs.extend(values[name] for name in wanted if name in values and name not in outputs)
    session = ort.InferenceSession(to_bytes(emitted.model), session_options(THREADS, optimized=False))
    for batch in _batches(found.calibration, found.inputs, _LAYER_SAMPLES):
        made = dict(zip(wanted, session.run(wanted, batch.feeds), strict=True))
        yield _Run(
            batch.feeds,
            {tensor: made[name] for tensor, name in raw.items()},
            {tensor: made[name] for tensor, name in rounded.items()},
        )


def _quantized_value(restored: Any) -> str:
    """Name of what goes into the Q/DQ pair that ends in ``restored``."""
    node = restored.producer()
    while node.op_type != "QuantizeLinear":
        node = node.inputs[0].producer()
    return str(node.inputs[0].name)


def compare(words: list[str]) -> None:
    """Print the table, each row from a fresh process."""
    print("| model | recipe | emitted | trained | difference | layers | worst layer | SQNR dB | goals |")
    print("|" + "---|" * 9)
    for case in CASES:
        for recipe in RECIPES:
            if any(word in f"{case.name} {recipe}" for word in words):
                command = [sys.executable, "-m", "benchmarks.qat_equality", case.name, recipe]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                print(_line(case.name, recipe, json.loads(done.stdout.splitlines()[-1])), flush=True)


def _line(name: str, recipe: str, found: dict[str, Any]) -> str:
    if "refused" in found:
        return f"| {name} | {recipe} | - | - | - | - | - | - | {found['refused']} |"
    difference = found["trained"] - found["emitted"]
    met = abs(difference) <= METRIC_GOAL_POINTS, found["sqnr_db"] >= LAYER_GOAL_DB
    told = ", ".join("met" if one else "missed" for one in met)
    cells = [name, recipe, f"{found['emitted']:.2f}", f"{found['trained']:.2f}", f"{difference:+.2f}"]
    cells += [str(found["layers"]), f"`{found['worst']}`", f"{found['sqnr_db']:.1f}", told]
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2])))
