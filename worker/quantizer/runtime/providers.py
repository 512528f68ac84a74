"""Where onnxruntime runs a model: on the CPU, or on a GPU that it has a provider for, and that can be used."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import onnx
import onnxruntime as ort

from service.contracts.errors import DeviceNotThereError, gpu_memory_error
from worker.quantizer.runtime.faults import RUNTIME_ERRORS, cleaned

CPU_PROVIDER = "CPUExecutionProvider"
# onnxruntime's word for a kind of device, the preferred one first.
_PROVIDERS = {
    "cuda": ("CUDAExecutionProvider",),
    "rocm": ("MIGraphXExecutionProvider", "ROCMExecutionProvider"),
}
# In full float32, and with kernels that are not chosen by trying which is fastest: the same every time.
_OPTIONS = {
    "CUDAExecutionProvider": {
        "use_tf32": "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        "arena_extend_strategy": "kSameAsRequested",
    }
}
# One of them is there if a driver is: NVIDIA's, that of its boards, ROCm's, and either under WSL.
_DRIVERS = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu", "/dev/kfd", "/dev/dxg")
# By what a provider says that its device has no more memory.
_OUT_OF_MEMORY = ("failed to allocate memory", "out of memory", "alloc_failed", "cuda failure 2:")


def may_have_gpu() -> bool:
    """False if libraries would surely find none, which is told without loading them.

    A driver makes device files; and devices may be hidden by a variable that both CUDA and ROCm heed.
    """
    if os.environ.get("CUDA_VISIBLE_DEVICES", "all").strip() in ("", "-1"):
        return False
    return any(Path(file).exists() for file in _DRIVERS)


def providers_of(device: str) -> list[Any]:
    """Where onnxruntime is to run a model.

    Args:
        device: auto (a GPU if onnxruntime can use one), cpu, cuda, cuda:N, rocm or rocm:N.

    Raises:
        DeviceNotThereError: this onnxruntime has nothing for it, or cannot use what it has.
    """
    kind, _, number = device.partition(":")
    if kind == "cpu" or (kind == "auto" and not may_have_gpu()):
        return [CPU_PROVIDER]
    there = ort.get_available_providers()
    wanted = [name for names in _PROVIDERS.values() for name in names] if kind == "auto" else _PROVIDERS.get(kind, ())
    found = next((name for name in wanted if name in there), None)
    refusal = f"this onnxruntime has {', '.join(there)}" if found is None else _refusal(found, int(number or 0))
    if found is not None and refusal is None:
        return [(found, _options(found, int(number or 0))), CPU_PROVIDER]
    if kind == "auto":
        return [CPU_PROVIDER]
    raise DeviceNotThereError(
        f"device {device!r} is not available: {refusal}",
        hint="Set infer_device to auto or cpu, or install the onnxruntime that is built for that GPU.",
    )


def _options(provider: str, number: int) -> dict[str, Any]:
    return {"device_id": number, **_OPTIONS.get(provider, {})}


@cache
def _refusal(provider: str, number: int) -> str | None:
    """Why onnxruntime cannot use a provider that it was built with; None: it can.

    It says so to nobody: a session that was to run there runs on the CPU.
    """
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "probe",
        [value("x", onnx.TensorProto.FLOAT, [1])],
        [value("y", onnx.TensorProto.FLOAT, [1])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    with redirect_stdout(sys.stderr):  # both print what they cannot load
        if provider == "CUDAExecutionProvider":
            ort.preload_dlls(msvc=False)
        try:
            chosen = [(provider, _options(provider, number))]
            session = ort.InferenceSession(model.SerializeToString(), options, providers=chosen, enable_fallback=0)
        except (*RUNTIME_ERRORS, ValueError) as error:
            return f"onnxruntime cannot use {provider}: {cleaned(str(error))}"
    if provider in session.get_providers():
        return None
    return f"onnxruntime cannot load {provider}: its libraries (CUDA, cuDNN) or the driver are missing or do not fit"


@contextmanager
def gpu_memory(what: str, *, on_gpu: bool) -> Iterator[None]:
    """The lack of a GPU's memory, as a typed error.

    Args:
        what: which model, in words.
        on_gpu: False: it runs on a CPU, and nothing is done.

    Raises:
        ResourceLimitError: it needs more than there is.
    """
    try:
        yield
    except RUNTIME_ERRORS as error:
        if on_gpu and any(word in str(error).lower() for word in _OUT_OF_MEMORY):
            raise gpu_memory_error(f"The {what} needs more memory than the GPU has: {cleaned(str(error))}") from error
        raise


@dataclass(frozen=True)
class Accelerator:
    """Where the float model of a run computes: its statistics, and what the quantized model is held against."""

    device: str = "cpu"  # as ``SessionSettings`` takes it
    provider: str = CPU_PROVIDER  # onnxruntime's
    # why it is the CPU although the run has a GPU; None: it has none, or that is used
    missing: str | None = None
    is_wanted: bool = False  # the run has a GPU

    @property
    def is_gpu(self) -> bool:
        """True if it is one."""
        return self.device != "cpu"

    @property
    def origin(self) -> dict[str, str]:
        """What results depend on, ready for JSON; nothing for a CPU, which is told of elsewhere."""
        if not self.is_gpu:
            return {}
        import torch  # every worker with a GPU has it

        name = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
        return {"provider": self.provider, "gpu": name}


def find_accelerator(device: Literal["cpu", "gpu"]) -> Accelerator:
    """Where the float model of a run computes that has such a device. A GPU that cannot be used is no error."""
    if device == "cpu":
        return Accelerator()
    reasons: list[str] = []
    for kind, names in _PROVIDERS.items():
        try:
            return Accelerator(kind, providers_of(kind)[0][0], is_wanted=True)
        except DeviceNotThereError as error:
            if set(names) & set(ort.get_available_providers()) or not reasons:
                reasons.append(error.detail)
    return Accelerator(missing=reasons[-1], is_wanted=True)
