"""onnxruntime sessions, always made the same way: a set number of threads, typed errors, on the CPU unless told."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from ml_dtypes import bfloat16

from service.contracts.errors import DeviceNotThereError, UnsupportedModelError
from worker.quantizer.graph import sizes
from worker.quantizer.graph.mapped import Mapped, building, forget_files
from worker.quantizer.graph.serialized import WeightlessProto, inline, refer, serialized, weight_bytes
from worker.quantizer.runtime.faults import RUNTIME_ERRORS, cleaned, failed_run
from worker.quantizer.runtime.providers import CPU_PROVIDER, gpu_memory, providers_of

_LARGE_GRAPH_NODES = 4000
# Of a whole model, from which on a second copy of its weights is not worth the time that it saves.
_LARGE_FILE_BYTES = 1 << 28
_FOLDER_OPTION = "session.model_external_initializers_file_folder_path"
_BFLOAT16, _FLOAT16 = "tensor(bfloat16)", "tensor(float16)"


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Onnxruntime's refusal of a model, as a typed error; ``what`` says which model.

    Raises:
        UnsupportedModelError: onnxruntime refuses the model.
    """
    try:
        yield
    except RUNTIME_ERRORS as error:
        raise UnsupportedModelError(
            f"onnxruntime refuses the {what}: {cleaned(str(error))}",
            hint="Check that the model runs in onnxruntime on a CPU, without custom operators.",
        ) from error


def session_options(threads: int, *, optimized: bool) -> ort.SessionOptions:
    """What all sessions have in common; not ``optimized``, the runtime leaves the graph as it is."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    # Several sessions live at once and run in turn: threads that spin while they wait steal the cores of the next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


# Turns a Cast or the like of a weight into a weight of the larger type.
_FOLDING = "ConstantFolding"
# Makes a product with a quantized weight alone one of blocks, and frees the old weight as if it were not in a file.
_BLOCKING = "QDQSelectorActionTransformer"


def keep_weights_once(options: ort.SessionOptions, *, packed: bool = False) -> None:
    """Let the runtime compute with weights as they are, and give memory back: a copy of large ones costs too much.

    With ``packed`` it still brings them into the form of its kernels.
    """
    if not packed:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False


def owner_of(session: ort.InferenceSession) -> object:
    """What keeps the files of a session mapped; the session itself may come to hold another one."""
    return session._sess


@dataclass(frozen=True)
class Parts:
    """A model as onnxruntime takes one of any size."""

    data: bytes  # the serialized model, in which large weights are references to nothing
    weights: dict[str, np.ndarray] = field(default_factory=dict)  # what they stand for, by name of the initializer
    folder: Path | None = None  # that files lie in which other references name; None: there are none
    files: frozenset[Path] = frozenset()  # those that it refers to
    weights_alone: bool = False  # some of its products have a quantized weight and float activations

    @property
    def left_out(self) -> list[str] | None:
        """Rewriting of onnxruntime's that weights in files must not undergo; None: it may do all."""
        if self.folder is None:
            return None
        return [_FOLDING, _BLOCKING] if self.weights_alone else [_FOLDING]


@dataclass(frozen=True)
class SessionSettings:
    """What few sessions need to be told."""

    # let onnxruntime keep the memory of a run for the next one; not for many small sessions that live at once
    arena: bool = True
    device: str = "cpu"  # where it runs; see ``providers_of``
    packed: bool = False  # see ``keep_weights_once``; of small models all are
    # with what the name of onnxruntime's profile begins, folder included; None: it makes none
    profile: Path | None = None


class Session:
    """An onnxruntime session with typed errors.

    Args:
        model: serialized and whole (no external data), or not serialized, and then of any size.
        threads: intra-op threads.
        what: words for error messages, e.g. "float model".
        uploaded: the model is the user's own, so that a failure to run is no fault of the engine.
        optimized: let onnxruntime rewrite the graph first.
        settings: what else there is to say.

    Raises:
        UnsupportedModelError: onnxruntime refuses the model.
        EngineError: the device is not available.
        ResourceLimitError: it is a GPU, and has too little memory.

    Attributes:
        provider: of onnxruntime, that it runs with; nodes that this cannot compute run on the CPU.
    """

    def __init__(
        self,
        model: bytes | ir.Model | Parts,
        *,
        threads: int,
        what: str = "model",
        uploaded: bool = False,
        optimized: bool = True,
        settings: SessionSettings = SessionSettings(),
    ) -> None:
        options = session_options(threads, optimized=optimized)
        if settings.profile is not None:
            options.enable_profiling, options.profile_file_prefix = True, str(settings.profile)
        options.enable_cpu_mem_arena = settings.arena
        self._what = what
        self._files: frozenset[Path] = frozenset()
        self._uploaded = uploaded
        providers = providers_of(settings.device)
        parts = Parts(model) if isinstance(model, bytes) else in_parts(model) if isinstance(model, ir.Model) else model
        # The runtime reads them where they are, as long as the session lives.
        self._weights = {name: _runtime_value(array) for name, array in parts.weights.items()}
        if parts.folder is not None or len(parts.data) > _LARGE_FILE_BYTES:
            keep_weights_once(options, packed=settings.packed)
        if parts.folder is not None:
            options.add_session_config_entry(_FOLDER_OPTION, str(parts.folder))
            self._files = parts.files
        if self._weights:
            options.add_external_initializers(list(self._weights), list(self._weights.values()))
        wanted = providers[0] if isinstance(providers[0], str) else providers[0][0]
        self._on_gpu = wanted != CPU_PROVIDER
        # Of a GPU's kernels, those that give the same result every time; on a CPU all do.
        options.use_deterministic_compute = self._on_gpu
        with refusals(what), gpu_memory(what, on_gpu=self._on_gpu), building(self._files) as owners:
            self._session = ort.InferenceSession(
                parts.data,
                options,
                providers=providers,
                disabled_optimizers=parts.left_out,
                enable_fallback=0,
            )
            owners.append(owner_of(self._session))
        self.provider: str = self._session.get_providers()[0]
        if self.provider != wanted:  # the runtime itself says nothing
            raise DeviceNotThereError(
                f"onnxruntime runs the {what} with {self.provider} and not with {wanted}",
                hint="Check the driver and the libraries of the GPU, or set infer_device to cpu.",
            )
        inputs = self._session.get_inputs()
        # Data of a float32 model is what a model made of it takes, too.
        self._float16_nodes = set() if uploaded else {entry.name for entry in inputs if entry.type == _FLOAT16}
        self._dynamic = any(not isinstance(axis, int) for entry in inputs for axis in entry.shape[1:])
        self.output_names: list[str] = [output.name for output in self._session.get_outputs()]
        self.output_types: dict[str, str] = {output.name: output.type for output in self._session.get_outputs()}

    def run(
        self,
        feeds: dict[str, np.ndarray],
        outputs: Sequence[str] | None = None,
        *,
        numbers: Sequence[int] | None = None,
    ) -> list[np.ndarray]:
        """Run once. bfloat16 goes in as ml_dtypes' type and comes out as float32; float16 inputs take float32, too.

        Args:
            feeds: by input name.
            outputs: names of the outputs wanted; None for all.
            numbers: of the samples in ``feeds``, for error messages.

        Raises:
            DatasetMismatchError: the data has a shape, a type or an index that the model cannot take.
            UnsupportedModelError: the user's own model cannot run.
            EngineError: onnxruntime fails on a model that the engine made.
            ResourceLimitError: it runs on a GPU, which has too little memory.
        """
        names = list(outputs or self.output_names)
        feeds = {
            name: array.astype(np.float16) if name in self._float16_nodes and array.dtype == np.float32 else array
            for name, array in feeds.items()
        }
        fed = {name: _runtime_value(array) if array.dtype == bfloat16 else array for name, array in feeds.items()}
        try:
            with gpu_memory(self._what, on_gpu=self._on_gpu):
                if any(self.output_types.get(name) == _BFLOAT16 for name in names):
                    values = {name: _runtime_value(array) for name, array in feeds.items()}
                    return [_array(value) for value in self._session.run_with_ort_values(names, values)]
                results: list[np.ndarray] = self._session.run(names, fed)
        except RUNTIME_ERRORS as error:
            raise failed_run(
                error, what=self._what, feeds=feeds, numbers=numbers, uploaded=self._uploaded, dynamic=self._dynamic
            ) from error
        finally:
            forget_files(self._files)  # large weights, of which several sessions would each keep the pages
        return results

    def end_profile(self) -> Path:
        """End the profile that the session was made with, and say where it lies."""
        return Path(self._session.end_profiling())


def _array(value: Any) -> np.ndarray:
    """The array of a runtime value; the runtime itself cannot hand out bfloat16."""
    if value.data_type() != _BFLOAT16:
        array: np.ndarray = value.numpy()
        return array
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(raw, bfloat16).reshape(value.shape()).astype(np.float32)


def inner_session(
    model: ir.Model,
    tensors: Sequence[str],
    *,
    pooled: Mapping[str, str] | None = None,
    threads: int,
    what: str,
    device: str = "cpu",
) -> Session:
    """A session with ``tensors`` as its outputs; see ``with_outputs``.

    Of a large graph the runtime does not rewrite anything: that takes longer than it saves, and with every inner tensor
    an output there is little to fuse.
    """
    parts = with_outputs(model, tensors, pooled=pooled)
    return own_session(parts, threads=threads, what=what, optimized=not is_large(model), device=device)


def own_session(model: ir.Model | Parts, *, threads: int, what: str, optimized: bool, device: str = "cpu") -> Session:
    """A session of a model that is looked at on the way, and not handed out.

    Without the runtime's optimizations where it refuses what they make of it (1.31: a QLinearConcat of float16).
    """
    settings = SessionSettings(device=device)
    try:
        return Session(model, threads=threads, what=what, optimized=optimized, settings=settings)
    except UnsupportedModelError:
        if not optimized:
            raise
        return Session(model, threads=threads, what=what, optimized=False, settings=settings)


def is_heavy(model: ir.Model) -> bool:
    """True if the weights are too large to be held more than once."""
    return weight_bytes(model) > sizes.WEIGHT_BYTES


def is_large(model: ir.Model) -> bool:
    """True if rewriting the graph takes the runtime longer than running it a few times."""
    return model.graph.num_nodes() > _LARGE_GRAPH_NODES


def with_outputs(model: ir.Model, tensors: Sequence[str], *, pooled: Mapping[str, str] | None = None) -> Parts:
    """The model with ``tensors`` as its only outputs, and channel means under the names of ``pooled``."""
    proto, weights, files = _in_parts(model)
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
    for tensor, mean in (pooled or {}).items():
        proto.graph.node.append(onnx.helper.make_node("GlobalAveragePool", [tensor], [mean], name=mean))
        proto.graph.output.append(onnx.ValueInfoProto(name=mean))
    return Parts(serialized(proto), weights, *_folder_of(files), weights_alone=_has_weights_alone(proto))


def in_parts(model: ir.Model) -> Parts:
    """The model with its weights beside it if they are large, else whole."""
    proto, weights, files = _in_parts(model)
    return Parts(serialized(proto), weights, *_folder_of(files), weights_alone=_has_weights_alone(proto))


def _has_weights_alone(proto: onnx.ModelProto) -> bool:
    """True if a product multiplies a dequantized constant with something that was not quantized."""
    dequantized = {node.output[0]: node.input[0] for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    constants = {tensor.name for tensor in proto.graph.initializer}
    products = (node.input[:2] for node in proto.graph.node if node.op_type in ("MatMul", "Gemm"))
    return any(
        any(dequantized.get(name) in constants for name in factors) and any(name not in dequantized for name in factors)
        for factors in products
    )


def _folder_of(files: Mapping[Path, Path]) -> tuple[Path | None, frozenset[Path]]:
    return next(iter(files.values()), None), frozenset(files)


def _in_parts(model: ir.Model) -> tuple[onnx.ModelProto, dict[str, np.ndarray], dict[Path, Path]]:
    """The proto, the weights it refers to as arrays, and the files that it refers to, each with the model's folder."""
    if not is_heavy(model) or _is_held(model):
        return ir.to_proto(model), {}, {}
    weightless = WeightlessProto(model, subgraphs=False)  # references inside sub-graphs are not resolved
    weights = weightless.weights
    filed = {name: one for name, one in weights.items() if isinstance(one, Mapped)}
    folder = common_folder([one.place.folder for one in filed.values()])
    for stored in weightless.proto.graph.initializer:
        if stored.name in filed:  # the runtime maps the file, and copies what it is handed as an array
            one = filed[stored.name]
            refer(stored, os.path.relpath(one.path.resolve(), folder), one.place.offset, weights[stored.name].nbytes)
        elif stored.name in weights and weights[stored.name].dtype.bitwidth < 8:
            inline(stored, weights.pop(stored.name))  # the runtime wants them packed, which arrays are not
    arrays = {name: np.ascontiguousarray(one.numpy()) for name, one in weights.items() if name not in filed}
    return weightless.proto, arrays, {one.path: folder for one in filed.values() if folder is not None}


def _is_held(model: ir.Model) -> bool:
    """True for a heavy model that is handed over whole: of weights of few bits the runtime makes others for its
    kernels, and ends the process where those lie in a file; there is room for a copy of them.
    """
    held = (value.const_value for value in model.graph.initializers.values())
    few_bits = any(tensor is not None and tensor.dtype.bitwidth < 8 for tensor in held)
    return few_bits and weight_bytes(model) <= sizes.PACKED_BYTES


def common_folder(folders: Sequence[Path]) -> Path | None:
    """The innermost folder that all of these lie in, the only one in which the runtime looks for files."""
    found = {str(folder.resolve()) for folder in folders}
    return Path(os.path.commonpath(found)) if found else None


def _runtime_value(array: np.ndarray) -> Any:
    """A value that uses the memory of ``array``; numpy's own types and those of ml_dtypes."""
    if array.dtype.type.__module__ == "numpy":
        return ort.OrtValue.ortvalue_from_numpy(array)
    kind = ir.DataType.from_numpy(array.dtype)
    raw = array.view(np.uint16 if array.dtype.itemsize == 2 else np.uint8)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(raw, int(kind))
