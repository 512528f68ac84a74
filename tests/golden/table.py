"""The kept hashes, and the machine and libraries that they hold for: kernels may round otherwise elsewhere."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

TABLE = Path(__file__).with_name("table.json")
_LIBRARIES = ("ml-dtypes", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "torch")


@dataclass(frozen=True)
class Golden:
    """What ``table.json`` holds."""

    machine: dict[str, str]
    hashes: dict[str, str]


def machine() -> dict[str, str]:
    """What the bytes depend on beside the code: versions of libraries, and the processor's vector instructions."""
    flags = ""
    info = Path("/proc/cpuinfo")
    if info.exists():
        found = next((line for line in info.read_text().splitlines() if line.startswith("flags")), "")
        vector = sorted(flag for flag in found.split() if flag.startswith(("avx", "amx", "fma", "sse4")))
        flags = hashlib.sha256(" ".join(vector).encode()).hexdigest()[:16]
    return {name: version(name).split("+")[0] for name in _LIBRARIES} | {"vector_instructions": flags}


def read() -> Golden:
    """The kept table; empty if there is none yet."""
    if not TABLE.exists():
        return Golden({}, {})
    document = json.loads(TABLE.read_text())
    return Golden(document["machine"], document["hashes"])
