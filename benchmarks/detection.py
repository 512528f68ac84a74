"""Average precision of a quantized detector beside the float one; prints a table of docs/benchmarks.md.

usage: python -m benchmarks.detection [PRESET ...]      (needs QUANTMILL_DATA, default ../shared/data)
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy import drop_of
from benchmarks.cases import THREADS, data_folder
from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.report import Report
from service.contracts.runner import DatasetSource
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

MODEL = "detection/captcha_yolox_416.onnx"
# YOLOX's decoding is outside of the graph; suppression and scores as in the model's own evaluation.
RAW: dict[str, Any] = {"boxes": 0, "decode": "yolox"}
METRICS: tuple[dict[str, Any], ...] = (
    {"kind": "map", **RAW, "nms_overlap": 0.45, "min_score": 0.01},
    {"kind": "box_agreement", **RAW, "nms_overlap": 0.45},
    {"kind": "confidence_shift", **RAW, "nms_overlap": 0.45},
)


def sources(folder: Path, temporary: Path) -> tuple[DatasetSource, DatasetSource]:
    """Calibration and evaluation data; true boxes [n, max, 4] are written from their list of (sample, box)."""
    spec = InputSpec(array="images", layout="NHWC", channel_order="bgr")
    preprocessing = PreprocessingSpec(inputs={"images": spec})
    with np.load(folder / "detection/evaluation.npz") as arrays:
        images, listed = arrays["images"], arrays["boxes"]
    owners = listed[:, 0].astype(int)
    most = int(np.bincount(owners).max())
    boxes, classes = np.zeros((len(images), most, 4), np.float32), np.full((len(images), most), -1, np.int32)
    for sample in range(len(images)):
        own = listed[owners == sample, 1:]
        boxes[sample, : len(own)], classes[sample, : len(own)] = own, 0
    written = temporary / "evaluation.npz"
    np.savez(written, images=images, boxes=boxes, classes=classes)
    return (
        DatasetSource(path=str(folder / "detection/calibration.npz"), preprocessing=preprocessing),
        DatasetSource(path=str(written), preprocessing=preprocessing),
    )


def measure(folder: Path, config: dict[str, Any]) -> Report:
    """The report of the detector, quantized by a config."""
    quick = {"advice_seconds": 0, "latency_runs": 1, "layer_samples": 1}
    settings = parse_config({**config, "evaluation": {"metrics": list(METRICS), **quick}})
    with tempfile.TemporaryDirectory() as temporary:
        calibration, evaluation = sources(folder, Path(temporary))
        return quantize(folder / MODEL, settings, calibration, evaluation, run=SilentRun(), threads=THREADS).report


def row(name: str, report: Report) -> str:
    """A line of the table."""
    before, after = report.float_, report.quantized
    figures = [
        f"{found:.2f}" for one in (before, after) for found in (one.metrics["map"], one.metric_details["map"]["ap50"])
    ]
    shift = after.metric_details["confidence_shift"]["signed"]
    seconds = sum(s.seconds for s in report.stages if s.name not in ("evaluation", "layers", "latency", "advice"))
    return (
        f"| `{name}` | {' | '.join(figures)} | {drop_of(report, 'map')} | {after.metrics['box_agreement']:.1f} | "
        f"{after.metrics['confidence_shift']:.3f} ({shift:+.3f}) | {report.fidelity.sqnr_db} | "
        f"1/{before.size_bytes / after.size_bytes:.2f} | {seconds:.0f} |"
    )


def main() -> None:
    folder = data_folder()
    print(
        "| preset | float AP | AP50 | quantized AP | AP50 | drop | agreement | score shift | SQNR dB | size | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for preset in sys.argv[1:] or ["int8", "int8_accurate", "npu_int8", "npu_int8_accurate"]:
        print(row(preset, measure(folder, {"preset": preset})), flush=True)


if __name__ == "__main__":
    main()
