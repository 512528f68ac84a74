"""What of the errors of a job is a limit that it met: memory, the memory of a GPU, or disk."""

from __future__ import annotations

import errno
import resource
import sys

from service.contracts.errors import QuantmillError, ResourceLimitError, gpu_memory_error
from worker.memory import HINT

# Words by which native code says that an allocation failed, where no MemoryError reaches Python.
_OUT_OF_MEMORY = ("bad_alloc", "bad allocation", "failed to allocate memory", "can't allocate memory", "out of memory")
# The same of a GPU's memory: torch's allocator, drivers, and libraries that allocate by themselves.
_OUT_OF_GPU_MEMORY = (
    "cuda out of memory",
    "hip out of memory",
    "cuda error: out of memory",
    "hip error: out of memory",
    "cuda failure 2:",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
)


def resource_limit(error: BaseException) -> ResourceLimitError | None:
    """The resource limit that ``error`` (or what caused it) stands for, if any."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, ResourceLimitError):
            return seen
        foreign = not isinstance(seen, QuantmillError)
        if foreign and _is_of_gpu(seen):
            return _gpu_memory_error()
        if isinstance(seen, MemoryError) or (foreign and any(word in str(seen).lower() for word in _OUT_OF_MEMORY)):
            return _memory_error()
        if isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT):
            return ResourceLimitError(
                "The disk is full.",
                hint="Free disk space, then try again.",
                resource="disk",
            )
        if isinstance(seen, OSError) and seen.errno == errno.EFBIG:
            return ResourceLimitError(
                "The job wrote a file larger than its limit.",
                hint="The quantized model is too large for this worker; ask the operator to raise the file size limit.",
                resource="disk",
            )
        seen = seen.__cause__ or seen.__context__
    return None


def _is_of_gpu(error: BaseException) -> bool:
    """True if a GPU's memory was too small; torch, which is loaded in that case, has an error of its own for that."""
    torch, told = sys.modules.get("torch"), str(error).lower()
    return (torch is not None and isinstance(error, torch.OutOfMemoryError)) or any(
        mark in told for mark in _OUT_OF_GPU_MEMORY
    )


def _gpu_memory_error() -> ResourceLimitError:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return gpu_memory_error("The job needs more memory than its GPU has.")
    used_bytes = torch.cuda.max_memory_reserved()
    limit_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
    return gpu_memory_error(
        f"The job needs more memory than the {limit_bytes} bytes of its GPU; torch held up to {used_bytes} bytes.",
        limit_bytes=limit_bytes,
        used_bytes=used_bytes,
    )


def _memory_error() -> ResourceLimitError:
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    known = limit_bytes != resource.RLIM_INFINITY
    limit = f" of {limit_bytes} bytes of address space" if known else ""
    return ResourceLimitError(
        f"The job needs more memory than its limit{limit}; it used {used_bytes} bytes when an allocation failed.",
        hint=HINT,
        resource="memory",
        limit_bytes=limit_bytes if known else None,
        used_bytes=used_bytes,
    )
