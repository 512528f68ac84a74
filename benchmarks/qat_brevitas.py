"""ResNet20 trained beside brevitas: the same network, grids, samples, order, steps and loss; accuracy and time.

Both begin with the float network whose batch normalizations are folded, have 4-bit weights per channel, 4-bit
activations at the same places and 8 bits for the input, learn all scales, take the same batches in the same order
without augmentation, and choose the best epoch by the same samples held back. Ours begins as post-training quantization
leaves it (no AdaRound). brevitas runs with Adam's usual rate (1e-3 for all) and with ours (3e-3 of each parameter's
root mean square), with the same schedule; with weight scales that are learned, and that follow the largest weight.

Needs QUANTMILL_BREVITAS_PYTHON: a Python with brevitas, torch and numpy; see docs/benchmarks.md. "s/step" is the median
over the steps of a training, each tool in its own process, one after the other, as often as there are seeds. brevitas
runs with BREVITAS_JIT=1, its fast way, unless the variable is set otherwise.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import THREADS, W4A4, case_of, data_folder, source
from benchmarks.unlabelled import without_labels

MODEL = "ResNet20"
DEFAULT_EPOCHS = 10
SETTINGS: dict[str, Any] = {
    **W4A4,
    "overrides": [{"match": {"node": "/conv1/Conv"}, "input_activation": {"dtype": "uint8"}}],
}
# Rate of brevitas' training, and how its weight scales come about.
VARIANTS = (("usual", "learned"), ("usual", "stats"), ("ours", "learned"))
# brevitas compiles its quantizers only where it is told to, and is several times slower where it is not.
_PEER_ENVIRONMENT = {"BREVITAS_JIT": "1"}
_SCRIPT = Path(__file__).with_name("qat_brevitas_peer.py")
_OURS = "Quantmill"


class _Clock:
    """A run that notes when each step of the training ended."""

    def __init__(self) -> None:
        self.ends: dict[int, float] = {}

    def progress(self, stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> None:
        if stage == "qat" and total is not None:
            self.ends[done] = time.monotonic()

    def overall(self, share: float, seconds_left: float) -> None:
        pass

    def metric(self, stage: str, step: int, values: Any) -> None:
        """Not needed."""

    def log(self, message: str, level: str = "info") -> None:
        """Not needed."""

    def check(self) -> None:
        """Never canceled."""

    @property
    def seconds_a_step(self) -> float:
        """Median; steps with a validation before them are few enough not to move it."""
        ends = self.ends
        return statistics.median(ends[step] - ends[step - 1] for step in ends if step - 1 in ends)


def measure(seed: int, epochs: int) -> dict[str, Any]:
    """Our training."""
    from service.contracts.config import parse_config
    from worker.quantizer.pipeline import quantize

    folder, case, clock = data_folder(), case_of(MODEL), _Clock()
    # One learning from all samples but those to choose by: no others are set aside for judging.
    training = {"method": "qat", "epochs": epochs, "accept": "always", "fixed_seed": seed}
    training["losses"] = [{"kind": "distillation", "divergence": "kl"}]
    evaluation = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}
    config = parse_config({**SETTINGS, "algorithms": [training], "evaluation": evaluation})
    with tempfile.TemporaryDirectory() as scratch:
        calibration = without_labels(source(folder, case.calibration), Path(scratch))
        evaluated = source(folder, case.evaluation)
        report = quantize(folder / case.model, config, calibration, evaluated, run=clock, threads=THREADS).report
    figures = report.algorithms[0].training
    if figures is None:
        raise RuntimeError(f"nothing was trained: {report.algorithms[0].summary}")
    return {
        "float": report.float_.metrics["top1"],
        "top1": report.quantized.metrics["top1"],
        "seconds_a_step": clock.seconds_a_step,
        "steps": figures.epochs[-1].steps,
        "best_epoch": figures.best_epoch,
    }


def write_material(path: Path, seed: int, epochs: int) -> None:
    """What the other side needs, as one .npz: parameters, pictures, logits of the float network, and the order.

    Parameters are named as in the prepared graph; "weight:NAME". Pictures are float32 [n,3,32,32] as the model takes
    them, "train", "held" (to choose the epoch by) and "evaluation"; "order" is int64 [epochs, samples].
    """
    import numpy as np
    from onnx_ir import convenience

    from service.contracts.config import parse_config
    from worker.quantizer.data import open_dataset
    from worker.quantizer.intake.inspect import open_model
    from worker.quantizer.modes.planning import prepare_model
    from worker.quantizer.training.samples import epoch_order

    folder, case = data_folder(), case_of(MODEL)
    uploaded = open_model(folder / case.model)
    session = uploaded.session(threads=THREADS, what="float model")
    prepared, _ = prepare_model(uploaded.model, parse_config(SETTINGS))
    held: dict[str, Any] = {}
    for node in prepared.graph:
        for value in node.inputs[1:] if node.op_type in ("Conv", "Gemm") else ():
            tensor = convenience.get_const_tensor(value)
            if tensor is None:
                raise RuntimeError(f"{value.name} is no constant")
            held[f"weight:{value.name}"] = tensor.numpy()
    arrays: dict[str, list[Any]] = {}
    for part in ("calibration", "evaluation"):
        data = source(folder, getattr(case, part))
        opened = open_dataset(Path(data.path), data.preprocessing)
        for batch in opened.batches(uploaded.summary.inputs, 100, arrays=(None,)):
            arrays.setdefault(part, []).append(batch.feeds["input"])
            arrays.setdefault(f"{part}_logits", []).append(session.run(batch.feeds, ["output"])[0])
            arrays.setdefault(f"{part}_labels", []).append(batch.arrays[None])
    whole = {name: np.concatenate(parts) for name, parts in arrays.items()}
    # As the engine does it: a tenth, the first ones, to choose by.
    chosen = round(len(whole["calibration"]) * 0.1)
    for name, kind in (("calibration", ""), ("calibration_logits", "_logits")):
        held[f"held{kind}"], held[f"train{kind}"] = whole[name][:chosen], whole[name][chosen:]
    count = len(held["train"])
    held["order"] = np.stack([epoch_order(count, seed, epoch) for epoch in range(epochs)])
    np.savez(path, **held, evaluation=whole["evaluation"], evaluation_labels=whole["evaluation_labels"])


def _last_line(command: list[str], **environment: str) -> dict[str, Any]:
    variables = {**environment, **os.environ}  # what the user has set counts
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(seeds: int, epochs: int | None) -> None:
    """Print the table."""
    python = os.environ.get("QUANTMILL_BREVITAS_PYTHON")
    if not python:
        sys.exit("set QUANTMILL_BREVITAS_PYTHON to a Python that has brevitas, torch and numpy")
    wanted = epochs or DEFAULT_EPOCHS
    found: dict[str, list[dict[str, Any]]] = {}
    samples = 0
    with tempfile.TemporaryDirectory() as scratch:
        material = Path(scratch) / "material.npz"
        for seed in range(seeds):
            write_material(material, seed, wanted)
            ours = _last_line([sys.executable, "-m", "benchmarks.qat_brevitas", str(seed), str(wanted)])
            found.setdefault(_OURS, []).append(ours)
            for rate, scales in VARIANTS:
                command = [python, str(_SCRIPT), str(material), rate, scales, str(seed), str(THREADS)]
                theirs = _last_line(command, **_PEER_ENVIRONMENT)
                samples = theirs["samples"]
                found.setdefault(f"brevitas, rate {rate}, scales {scales}", []).append(theirs)
    _print(found, samples)


def _print(found: dict[str, list[dict[str, Any]]], samples: int) -> None:
    print(f"float {found[_OURS][0]['float']:.2f}, {found[_OURS][0]['steps']} steps, {len(found[_OURS])} seeds")
    print("| by | before training | top-1 | of each seed | last epoch | s/step |\n" + "|" + "---|" * 6)
    means, times = {}, {}
    for name, runs in found.items():
        means[name] = statistics.mean(run["top1"] for run in runs)
        times[name] = statistics.median(run["seconds_a_step"] for run in runs)
        each = ", ".join(f"{run['top1']:.2f}" for run in runs)
        before = f"{runs[0]['before']:.2f}" if "before" in runs[0] else "-"
        last = f"{statistics.mean(run['last'] for run in runs):.2f}" if "last" in runs[0] else "-"
        print(f"| {name} | {before} | {means[name]:.2f} | {each} | {last} | {times[name]:.3f} |")
    theirs = [name for name in found if name != _OURS]
    best = max(theirs, key=lambda name: means[name])
    fastest = min(times[name] for name in theirs)
    share = means[best] / 100.0
    # Of the difference of two shares of the same samples, taken as independent of each other.
    error = 100.0 * (2.0 * share * (1.0 - share) / samples) ** 0.5
    difference = means[_OURS] - means[best]
    print(f"\nours - best of brevitas: {difference:+.2f} points, one standard error {error:.2f}: ", end="")
    print("met" if difference >= -error else "missed")
    print(f"s/step, ours over brevitas' fastest: {times[_OURS] / fastest:.2f}: ", end="")
    print("met" if times[_OURS] <= fastest else "missed")


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]))))
