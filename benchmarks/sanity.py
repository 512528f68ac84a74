"""Faults planted in real data x models: which are found, and what is said of correct data; prints tables.

usage: python -m benchmarks.sanity [MODEL ...]      (needs QUANTMILL_DATA, default ../shared/data)

Nothing is quantized: only the checks before it run. A fault counts as found if a critical finding, or a warning, stands
in the report that does not stand there with correct data, or if the data is refused. A fault that costs the float model
less than a point of top-1 is told in brackets if nothing was said of it, and counted apart: no figure is wrong by it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.cases import CASES, THREADS, Case, data_folder, source
from benchmarks.zoo import zoo_cases
from service.contracts.compatibility import check_dataset
from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.errors import DatasetMismatchError
from service.contracts.report.layers import Finding
from worker.quantizer.data import ArrayDataset, OpenDataset, open_dataset
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.refine.draft import Case as Quantized
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.run.services import Services
from worker.quantizer.sanity.examine import examine
from worker.quantizer.sanity.look import look_at, run_on

HARMLESS_POINTS = 1.0
# The zoo has few inputs for some of its models: that this is told is right.
_BY_CONSTRUCTION = "few-calibration-samples"
Array = np.ndarray


@dataclass(frozen=True)
class Data:
    """One input's stored samples with labels, and how they are fed."""

    values: Array
    labels: Array | None
    spec: InputSpec

    def dataset(self, name: str) -> ArrayDataset:
        spec = self.spec.model_copy(update={"array": "values"})
        return ArrayDataset({"values": self.values}, self.labels, PreprocessingSpec(inputs={name: spec}))


class Model:
    """A float model, ready to be examined on any data."""

    def __init__(self, path: Path) -> None:
        uploaded = open_model(path)
        self.model, self.summary = uploaded.model, uploaded.summary
        self.session = uploaded.session(threads=THREADS, what="float model", model=uploaded.model)
        self.services = Services(run=SilentRun(), threads=THREADS)

    def findings(self, calibration: OpenDataset, evaluation: OpenDataset) -> tuple[Finding, ...]:
        config = parse_config({"preset": "int8"})
        for data in (calibration, evaluation):
            check_dataset(self.summary, data.summary)
        metrics = Metrics(config.evaluation, self.summary.outputs)
        case = Quantized(config, self.summary, calibration, evaluation, self.session, metrics=metrics)
        return examine(case, self.model, self.services)

    def top1(self, data: Data) -> float:
        name = self.summary.inputs[0].name
        picked = look_at(data.dataset(name), self.summary.inputs).picked
        outputs = np.concatenate([batch[0] for batch in run_on(self.session, picked, self.summary.inputs)])
        return 100.0 * float((outputs.reshape(len(outputs), -1).argmax(axis=1) == picked.labels).mean())


def scaled(factor: float) -> Callable[[Data], Data | None]:
    return lambda data: replace(data, spec=data.spec.model_copy(update={"scale": data.spec.scale * factor}))


def without_mean(data: Data) -> Data:
    """No mean where there should be one; where there should be none, one of about a standard deviation."""
    if any(data.spec.mean):
        return replace(data, spec=data.spec.model_copy(update={"mean": (0.0,)}))
    offset = float(np.float64(f"{data.values.astype(np.float64).std():.0e}")) * data.spec.scale
    return replace(data, spec=data.spec.model_copy(update={"mean": (offset,)}))


def misread(data: Data) -> Data | None:
    """Pictures of height x width x channels that are read as channels x height x width, byte for byte."""
    if data.spec.layout != "NHWC" or data.values.shape[3] == 1:
        return None
    n, height, width, channels = data.values.shape
    values = data.values.reshape(n, channels, height, width)
    return replace(data, values=values, spec=data.spec.model_copy(update={"layout": "NCHW"}))


def exchanged(data: Data) -> Data:
    """Rows for columns; where they differ in length, byte for byte in the old shape."""
    places = [k for k in range(1, data.values.ndim) if data.values.shape[k] > 3]
    values = data.values.swapaxes(*places[:2]).reshape(data.values.shape)
    return replace(data, values=np.ascontiguousarray(values))


def undeclared(data: Data) -> Data | None:
    """Pictures of height x width x channels without a word of their layout."""
    if data.spec.layout != "NHWC":
        return None
    fields = {"layout": None, "mean": data.spec.mean[:1], "std": data.spec.std[:1]}
    return replace(data, spec=data.spec.model_copy(update=fields))


def reversed_channels(data: Data) -> Data | None:
    if data.spec.layout != "NHWC" or data.values.shape[3] != 3:
        return None
    return replace(data, values=np.ascontiguousarray(data.values[..., ::-1]))


def constant(data: Data) -> Data:
    return replace(data, values=np.zeros_like(data.values))


def single(data: Data) -> Data:
    labels = None if data.labels is None else data.labels[:1]
    return replace(data, values=data.values[:1], labels=labels)


def shuffled(data: Data) -> Data | None:
    if data.labels is None:
        return None
    return replace(data, labels=np.random.default_rng(0).permutation(data.labels))


def same(data: Data) -> Data:
    return data


# Fault: what it does to calibration and to evaluation data; None: it makes no sense for such data.
FAULTS: dict[str, tuple[Callable[[Data], Data | None], Callable[[Data], Data | None]]] = {
    "scale x 255": (scaled(255.0), scaled(255.0)),
    "scale / 255": (scaled(1 / 255), scaled(1 / 255)),
    "mean": (without_mean, without_mean),
    "layout untold": (undeclared, undeclared),
    "layout misread": (misread, misread),
    "rows for columns": (exchanged, exchanged),
    "channel order": (reversed_channels, reversed_channels),
    "constant calibration": (constant, same),
    "all data constant": (constant, constant),
    "one sample": (single, same),
    "shuffled labels": (same, shuffled),
}


def loaded(folder: Path, part: tuple[str, PreprocessingSpec]) -> Data:
    """All of a dataset in memory; its one input."""
    found = source(folder, part)
    spec = found.preprocessing or PreprocessingSpec()
    data = open_dataset(Path(found.path), spec)
    (entry,) = spec.inputs.values()
    array = data.selection.arrays[str(entry.array)]
    return Data(array.open().read(data.samples), data.labels, entry)


def told(findings: tuple[Finding, ...], usual: tuple[Finding, ...] = ()) -> list[str]:
    """Codes of what is critical or a warning, without those that correct data has, too."""
    known = {finding.code for finding in usual}
    return [finding.code for finding in findings if finding.severity != "info" and finding.code not in known]


@dataclass
class Count:
    planted: int = 0
    found: int = 0
    harmless: int = 0

    def __str__(self) -> str:
        harmless = f" ({self.harmless} more cost less than a point and are not told)" if self.harmless else ""
        return f"found {self.found} of {self.planted}{harmless}"


def row(case: Case, folder: Path, count: Count, *, labels: bool) -> tuple[list[str], list[str]]:
    """Cells of one model, and what is said of its correct data."""
    model = Model(folder / case.model)
    name = model.summary.inputs[0].name
    right = [loaded(folder, part) for part in (case.calibration, case.evaluation)]
    if not labels:
        right = [replace(data, labels=None) for data in right]
    usual = model.findings(*(data.dataset(name) for data in right))
    cells = []
    for change in FAULTS.values():
        wrong = [do(data) for do, data in zip(change, right, strict=True)]
        if None in wrong:
            cells.append("-")
            continue
        try:
            codes = told(model.findings(*(data.dataset(name) for data in wrong if data is not None)), usual)
        except DatasetMismatchError as refusal:
            codes = [f"refused: {refusal.errors[0].code}"]
        if not codes and labels and wrong[1] is not None:
            before, after = model.top1(right[1]), model.top1(wrong[1])
            if before - after < HARMLESS_POINTS:
                count.harmless += 1
                cells.append(f"({before:.1f} -> {after:.1f} %)")
                continue
            cells.append(f"MISSED ({before:.1f} -> {after:.1f} %)")
        else:
            cells.append(codes[0] if codes else "MISSED")
        count.planted += 1
        count.found += bool(codes)
    return cells, told(usual)


def table(folder: Path, cases: list[Case], *, labels: bool) -> None:
    print(f"\nEvaluation data {'with' if labels else 'without'} labels\n")
    print(f"| model | {' | '.join(FAULTS)} | correct data | s |")
    print("|---" * (len(FAULTS) + 3) + "|")
    count, alarms = Count(), 0
    for case in cases:
        begin = time.perf_counter()
        cells, said = row(case, folder, count, labels=labels)
        alarms += bool(said)
        seconds = time.perf_counter() - begin
        print(f"| {case.name} | {' | '.join(cells)} | {', '.join(said) or 'silent'} | {seconds:.0f} |", flush=True)
    print(f"\n{count}, false alarms {alarms} of {len(cases)}", flush=True)


def zoo(folder: Path) -> None:
    """Models without labels, on real inputs."""
    alarms = total = 0
    for name, path, calibration, evaluation in zoo_cases(folder):
        said = [code for code in told(Model(path).findings(calibration, evaluation)) if code != _BY_CONSTRUCTION]
        total += 1
        alarms += bool(said)
        print(f"- {name}: {', '.join(said) or 'silent'}", flush=True)
    print(f"\nfalse alarms {alarms} of {total}")


def main() -> None:
    folder = data_folder()
    cases = [case for case in CASES if case.name in sys.argv[1:]] or list(CASES)
    table(folder, cases, labels=True)
    table(folder, cases, labels=False)
    print("\nOther models on real inputs, which are correct\n")
    zoo(folder)


if __name__ == "__main__":
    main()
