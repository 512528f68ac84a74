"""quantize: the files that a task names in, the files of its result out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir

from service.contracts.errors import UnsupportedModelError
from service.contracts.runner import MAX_FILES, WEIGHTS_KIND, MadeFile, QuantizeResult, QuantizeTask
from worker.quantizer.evaluation.metrics import MetricFunction
from worker.quantizer.graph.serialized import ModelContent, save_weights
from worker.quantizer.pipeline import Provisions, quantize
from worker.quantizer.report.graph_view import Grids, graph_file
from worker.quantizer.run.cache import Cache
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import ExtraFile, nobody, write_files

MODEL_FILE = "model.onnx"
WEIGHTS_FILE = "weights.safetensors"


def quantize_files(
    task: QuantizeTask,
    run: Run,
    reached: Callable[[str], None] = nobody,
    *,
    functions: Mapping[str, MetricFunction] = MappingProxyType({}),
) -> QuantizeResult:
    """``quantize`` the model of a task, and write ``model.onnx`` and all other files into its output folder.

    Args:
        task: what to do.
        run: progress, log, cancellation.
        reached: see ``Services``.
        functions: Python functions that metrics of kind function are, by name.
    """
    result = quantize(
        Path(task.model_path),
        task.config,
        task.calibration,
        task.evaluation,
        run=run,
        threads=task.threads,
        provisions=Provisions(
            checkpoint_dir=None if task.checkpoint_dir is None else Path(task.checkpoint_dir),
            checkpoint_bytes=task.checkpoint_bytes,
            cache=_cache(task, run),
            graphs={name: Path(path) for name, path in task.metric_graphs.items()},
            functions=functions,
            extra_bytes=task.extra_bytes,
            reached=reached,
            scratch=Path(task.output_dir),
            data_file=task.data_file,
            device=task.device,
        ),
    )
    output = Path(task.output_dir)
    result.content.move(output / MODEL_FILE)
    files = [*result.files, *(_weights(output, run) if task.weights else ())]
    if task.graph and result.prepared is not None:
        files += _graph(result.prepared, files, task.extra_bytes, run, result.grids)
    written = write_files(tuple(files), output)
    return QuantizeResult(model_file=MODEL_FILE, report=result.report, data=_data(result.content), files=written)


def _data(content: ModelContent) -> MadeFile | None:
    """The file of external data, if the model is so large that it has one."""
    if content.data is None or content.data_sha256 is None:
        return None
    return MadeFile(file=content.data.name, sha256=content.data_sha256)


def _cache(task: QuantizeTask, run: Run) -> Cache:
    folder = None if task.cache_dir is None else Path(task.cache_dir)
    return Cache(folder, scope=task.cache_scope, limit_bytes=task.cache_bytes, run=run)


def _graph(
    prepared: ir.Graph,
    others: Sequence[ExtraFile],
    limit_bytes: int | None,
    run: Run,
    grids: Grids = MappingProxyType({}),
) -> Iterator[ExtraFile]:
    """The prepared graph, where there is room for it beside the files that a config asked for."""
    made = graph_file(prepared, run, grids)
    if made is None:
        return
    taken = made.size_bytes + sum(file.size_bytes for file in others)
    if len(others) >= MAX_FILES or (limit_bytes is not None and taken > limit_bytes):
        run.log(f"{made.filename} is left out: not enough space", "warning")
        return
    yield made


def _weights(output: Path, run: Run) -> Iterator[ExtraFile]:
    """The weights of the model that was written, by themselves; a model without any has no such file."""
    made = output / f".{WEIGHTS_FILE}"
    try:
        save_weights(output / MODEL_FILE, made)
    except UnsupportedModelError as error:
        run.log(f"there is no {WEIGHTS_FILE}: {error.detail}", level="warning")
        return
    yield ExtraFile(WEIGHTS_KIND, WEIGHTS_FILE, "application/octet-stream", made)
