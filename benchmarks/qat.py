"""Quantization-aware training: top-1 beside post-training quantization and AdaRound, seconds, memory; brevitas.

usage: python -m benchmarks.qat [--rows WORD ...] [--epochs N]
       python -m benchmarks.qat --equality [--rows WORD ...]
       python -m benchmarks.qat --brevitas [--seeds N] [--epochs N]
       python -m benchmarks.qat --cancel [--rows WORD ...]            (need QUANTMILL_DATA, default ../shared/data)

Every row is the emitted model, run by onnxruntime on the whole evaluation set; each of its recipes runs in a fresh
process. "qat s" is the stage that trains, "peak MiB" of the process with the training. "goal" says what a row should
reach, and whether it did.

--equality compares what is trained with what is emitted (see benchmarks.qat_equality), --brevitas trains ResNet20 with
brevitas too (see benchmarks.qat_brevitas), --cancel stops trainings of a service (benchmarks.qat_cancel). --epochs N
shortens trainings, for a quick look; goals are for the default.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import qat_brevitas, qat_cancel, qat_equality
from benchmarks.cases import THREADS, W4A4, case_of, data_folder, source
from benchmarks.unlabelled import without_labels

ROUND: dict[str, Any] = {"method": "adaround"}
QUANT: dict[str, Any] = {"method": "adaquant"}
QAT: dict[str, Any] = {"method": "qat"}
# Mirrored pictures, moved by a tenth of their side.
SMALL_PICTURES: dict[str, Any] = {**QAT, "augmentations": [{"kind": "flip"}, {"kind": "crop", "pixels": 4}]}
PICTURES: dict[str, Any] = {**QAT, "augmentations": [{"kind": "flip"}, {"kind": "crop", "pixels": 16}]}
# Moved by a tenth of their frames.
SOUNDS: dict[str, Any] = {**QAT, "augmentations": [{"kind": "shift", "steps": 5, "axis": 2}]}
_NO_ENGINE = ("evaluation", "layers", "latency", "advice")
POST, ADAROUND, ADAQUANT, TRAINED = "post-training", "AdaRound", "AdaQuant", "QAT"


@dataclass(frozen=True)
class Row:
    """One line.

    Attributes:
        model: name of its case.
        recipe: in words.
        settings: of the config, without algorithms.
        training: the entry of qat, which follows AdaRound.
        labels: whether the calibration set has its labels.
        beside: what AdaQuant makes is shown too.
        recovers: share of what AdaRound leaves lost that training should bring back.
        within: points that it may be below float.
        seconds: that training may take.
    """

    model: str
    recipe: str
    settings: dict[str, Any]
    training: dict[str, Any]
    labels: bool = True
    beside: bool = False
    recovers: float | None = None
    within: float | None = None
    seconds: float | None = None

    @property
    def chains(self) -> dict[str, tuple[dict[str, Any], ...]]:
        """Algorithms by what their top-1 is called, the training first."""
        chains: dict[str, tuple[dict[str, Any], ...]] = {
            TRAINED: (ROUND, self.training),
            POST: (),
            ADAROUND: (ROUND,),
        }
        if self.beside:
            chains[ADAQUANT] = (QUANT,)
        return chains


ROWS = (
    Row("ResNet20", "W4A4, no labels", W4A4, SMALL_PICTURES, labels=False, recovers=0.5, seconds=600.0),
    Row("ResNet20", "XINT8", {"preset": "xint8"}, SMALL_PICTURES, within=0.1),
    Row("KWS DS-CNN", "W4A4", W4A4, SOUNDS, recovers=0.5, seconds=180.0),
    Row("KWT-1", "W4A8", {"preset": "w4a8"}, QAT, within=0.5),
    Row("MobileNetV2 1.0", "W4A4, no labels", W4A4, PICTURES, labels=False, beside=True),
)


def measure(row: Row, algorithms: tuple[dict[str, Any], ...], epochs: int | None) -> dict[str, Any]:
    """The figures of one recipe of a row."""
    from service.contracts.config import parse_config
    from worker.quantizer.pipeline import quantize
    from worker.quantizer.run.interface import SilentRun

    folder, case = data_folder(), case_of(row.model)
    short = {} if epochs is None else {"epochs": epochs}
    wanted = [{**entry, **short} if entry["method"] == "qat" else entry for entry in algorithms]
    evaluation = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}
    config = parse_config({**row.settings, "algorithms": wanted, "evaluation": evaluation})
    with tempfile.TemporaryDirectory() as scratch:
        calibration, evaluated = source(folder, case.calibration), source(folder, case.evaluation)
        if not row.labels:
            calibration = without_labels(calibration, Path(scratch))
        report = quantize(folder / case.model, config, calibration, evaluated, run=SilentRun(), threads=THREADS).report
    engine = [stage for stage in report.stages if stage.name not in _NO_ENGINE]
    trained = next((outcome for outcome in report.algorithms if outcome.method == "qat"), None)
    return {
        "float": report.float_.metrics["top1"],
        "top1": report.quantized.metrics["top1"],
        "undone": [outcome.method for outcome in report.algorithms if not outcome.kept],
        "seconds": sum(stage.seconds for stage in engine if stage.name == "qat"),
        "peak_mib": max(stage.peak_rss_bytes for stage in engine) / 2**20,
        "epochs": 0 if trained is None or trained.training is None else len(trained.training.epochs) - 1,
        "best_epoch": 0 if trained is None or trained.training is None else trained.training.best_epoch,
    }


def goal_of(row: Row, found: dict[str, dict[str, Any]]) -> str:
    """What a row should reach, and whether it did."""
    trained, before = found[TRAINED], found[ADAROUND]
    told: list[tuple[str, bool]] = []
    if row.recovers is not None:
        lost = before["float"] - before["top1"]
        gained = trained["top1"] - before["top1"]
        share = f"{gained / lost:.0%}" if lost > 0 else "nothing lost"
        told.append((f"recovers {row.recovers:.0%} of what AdaRound loses: {share}", gained >= row.recovers * lost))
    if row.within is not None:
        below = trained["float"] - trained["top1"]
        # The metric is a count of samples: what is equal must not fail by a rounding of floats.
        told.append((f"within {row.within} of float: {-below:+.2f}", below <= row.within + 1e-9))
    if row.seconds is not None:
        told.append((f"in {row.seconds:.0f} s", trained["seconds"] <= row.seconds))
    return "; ".join(f"{words} ({'met' if met else 'missed'})" for words, met in told) or "-"


def _in_fresh_process(number: int, name: str, epochs: int | None) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.qat", "--one", f"{number} {name}"]
    command += [] if epochs is None else ["--epochs", str(epochs)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def _line(row: Row, found: dict[str, dict[str, Any]]) -> str:
    trained = found[TRAINED]
    undone = sorted({method for figures in found.values() for method in figures["undone"]})
    cells = [
        row.model,
        row.recipe + (f" (undone: {', '.join(undone)})" if undone else ""),
        f"{trained['float']:.2f}",
        *(f"{found[name]['top1']:.2f}" if name in found else "-" for name in (POST, ADAROUND, ADAQUANT, TRAINED)),
        f"{trained['seconds']:.0f}",
        f"{trained['peak_mib']:.0f}",
        f"{trained['epochs']} ({trained['best_epoch']})",
        goal_of(row, found),
    ]
    return "| " + " | ".join(cells) + " |"


def compare(words: list[str], epochs: int | None) -> None:
    """Print the table."""
    print(f"| model | recipe | float | {POST} | {ADAROUND} | {ADAQUANT} | {TRAINED} ", end="")
    print("| qat s | peak MiB | epochs (best) | goal |\n" + "|" + "---|" * 11)
    for number, row in enumerate(ROWS):
        if any(word in f"{row.model} {row.recipe}" for word in words):
            found = {name: _in_fresh_process(number, name, epochs) for name in row.chains}
            print(_line(row, found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[""], help="words of the rows wanted")
    parser.add_argument("--epochs", type=int, help="of every training; default: as the rows have them")
    parser.add_argument("--equality", action="store_true", help="compare what is trained with what is emitted instead")
    parser.add_argument("--brevitas", action="store_true", help="train beside brevitas instead")
    parser.add_argument("--cancel", action="store_true", help="cancel trainings of a service instead")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each, with --brevitas")
    parser.add_argument("--one", help="internal: measure one recipe and print JSON")
    arguments = parser.parse_args()
    if arguments.one is not None:
        number, _, name = arguments.one.partition(" ")
        row = ROWS[int(number)]
        print(json.dumps(measure(row, row.chains[name], arguments.epochs)))
    elif arguments.equality:
        qat_equality.compare(arguments.rows)
    elif arguments.cancel:
        qat_cancel.compare(arguments.rows)
    elif arguments.brevitas:
        qat_brevitas.compare(arguments.seeds, arguments.epochs)
    else:
        compare(arguments.rows, arguments.epochs)


if __name__ == "__main__":
    main()
