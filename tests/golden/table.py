"""The kept hashes, by kind of processor, and the libraries that they hold for: other kernels round otherwise."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

TABLE = Path(__file__).with_name("table.json")
_UNKNOWN = "-"
_LIBRARIES = ("ml-dtypes", "numpy", "onnx", "onnx-ir", "onnxruntime", "onnxscript", "torch")

Hashes = dict[str, str]


@dataclass(frozen=True)
class Golden:
    """What ``table.json`` holds: hashes by name of the case, by kind of processor."""

    libraries: dict[str, str] = field(default_factory=dict)
    processors: dict[str, Hashes] = field(default_factory=dict)

    @property
    def here(self) -> Hashes:
        """Those that hold on this machine; empty where its libraries or its processor are others."""
        return self.processors.get(processor(), {}) if self.libraries == libraries() else {}

    def with_hashes(self, found: Hashes) -> Golden:
        """With what this machine found; where that is a change, what other processors give is not known any more."""
        kept = self.here
        changed = {name for name, value in found.items() if name in kept and kept[name] != value}
        others = self.processors if self.libraries == libraries() else {}
        tables = {
            kind: {name: value for name, value in table.items() if name not in changed}
            for kind, table in others.items()
        }
        return Golden(libraries(), {**tables, processor(): {**tables.get(processor(), {}), **found}})

    def write(self) -> None:
        """Keep it in the file: a line for each case, with its hashes in the order of the processors."""
        kinds = sorted(self.processors)
        names = sorted({name for table in self.processors.values() for name in table})
        hashes = {name: " ".join(self.processors[kind].get(name, _UNKNOWN) for kind in kinds) for name in names}
        document = {"libraries": self.libraries, "processors": " ".join(kinds), "hashes": hashes}
        TABLE.write_text(json.dumps(document, indent=1) + "\n")


def libraries() -> dict[str, str]:
    """Versions of what the bytes depend on beside the code."""
    return {name: version(name).split("+")[0] for name in _LIBRARIES}


def processor() -> str:
    """Digest of the processor's vector instructions, by which kernels are chosen."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    flags = next((line for line in lines if line.startswith("flags")), "")
    vector = sorted(flag for flag in flags.split() if flag.startswith(("avx", "amx", "fma", "sse4")))
    return hashlib.sha256(" ".join(vector).encode()).hexdigest()[:16]


def read() -> Golden:
    """The kept table; empty if there is none yet."""
    if not TABLE.exists():
        return Golden()
    document = json.loads(TABLE.read_text())
    found: dict[str, Hashes] = {kind: {} for kind in document["processors"].split()}
    for name, hashes in document["hashes"].items():
        for kind, value in zip(found, hashes.split(), strict=True):
            if value != _UNKNOWN:
                found[kind][name] = value
    return Golden(document["libraries"], found)
