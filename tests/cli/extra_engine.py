"""An engine that gives three files more, uses its cache and its checkpoints, and says what it has found there."""

from __future__ import annotations

from typing import Any

from worker.quantizer import pipeline
from worker.quantizer.run.extra import ExtraFile

FILES = {"as_input": "net.onnx", "pareto_1_model": "pareto-1.onnx", "table_csv": "table.csv"}
_fill = pipeline._fill


def fill(model: Any, origin: Any, case: Any, services: Any) -> Any:
    """In place of the pipeline's own."""
    for kind, name in FILES.items():
        services.files.add(ExtraFile(kind, name, "application/octet-stream", name.encode()))
    kept = [services.checkpoint.find("a" * 64), services.checkpoint.load("layer")]
    services.checkpoint.keep("a" * 64, b"cached")
    services.checkpoint.save("layer", b"finished")
    services.run.log(f"kept: {kept!r}")
    return _fill(model, origin, case, services)
