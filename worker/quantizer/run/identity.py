"""What results depend on, as digests: of a whole run, and of any piece of work."""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from service import contracts
from service.contracts.base import VERSION
from service.contracts.config import QuantizationConfig
from service.contracts.model import ModelSummary
from worker import quantizer
from worker.quantizer.data import OpenDataset
from worker.quantizer.intake.loading import file_sha256
from worker.quantizer.runtime.host import cpu_kind

_LIBRARIES = ("numpy", "onnx", "onnx-ir", "onnxscript", "onnxruntime")
# Not needed by every run, and not installed everywhere.
_OPTIONAL_LIBRARIES = ("pillow", "scipy", "torch")


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that every run computes with."""
    return {"python": platform.python_version(), **{name: _read_version(name) for name in _LIBRARIES}}


@lru_cache(maxsize=1)
def engine_fingerprint() -> str:
    """The engine's version and a digest of its code: a version under development is not one engine but many."""
    digest = hashlib.sha256()
    for folder in (Path(quantizer.__file__).parent, Path(contracts.__file__).parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return f"{VERSION} {digest.hexdigest()}"


def origin(
    summary: ModelSummary,
    calibration: OpenDataset,
    evaluation: OpenDataset | None,
    graphs: Mapping[str, Path],
    *,
    threads: int,
) -> dict[str, Any]:
    """All that a run's results depend on but its config, ready for JSON: model, data, engine, libraries, CPU, threads.

    The number of threads counts, and so does the kind of CPU: sums in another order end in other last bits.

    Args:
        summary: of the model.
        calibration: its data.
        evaluation: the data of the comparison, if it is other data.
        graphs: files of metrics, by the name that the config has for each.
        threads: CPU threads.
    """
    return {
        "engine": engine_fingerprint(),
        "libraries": library_versions() | {name: _version(name) for name in _OPTIONAL_LIBRARIES},
        "model": summary.sha256,
        "calibration": _data(calibration),
        "evaluation": None if evaluation is None else _data(evaluation),
        "graphs": {name: file_sha256(path) for name, path in sorted(graphs.items())},
        "cpu": cpu_kind(),
        "threads": threads,
    }


def run_identity(config: QuantizationConfig, run_origin: dict[str, Any], *, devices: Sequence[str] = ()) -> str:
    """Digest of everything that a run's result depends on.

    Args:
        config: resolved.
        run_origin: of ``origin``.
        devices: on which it computes, where the config leaves that to the host.
    """
    return content_key("run", run_origin, config.model_dump(mode="json"), list(devices))


def content_key(kind: str, *parts: Any) -> str:
    """Lowercase hex sha256 of ``kind`` and ``parts``: a name for what is computed from them.

    Args:
        kind: what it is; two kinds never have a key in common.
        parts: ready for JSON, or bytes. Everything that the content depends on: usually ``Case.origin``, then the
            parts of the config and whatever else was given.

    Raises:
        TypeError: a part is neither bytes nor ready for JSON.
        ValueError: a part holds NaN or infinity.
    """
    digest = hashlib.sha256()
    for part in (kind, *parts):
        form = b"bytes" if isinstance(part, bytes) else b"json"
        data = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True, allow_nan=False).encode()
        digest.update(b"%s %d\n" % (form, len(data)))
        digest.update(data)
    return digest.hexdigest()


def _data(data: OpenDataset) -> dict[str, Any]:
    return {"sha256": data.summary.sha256, "preprocessing": data.preprocessing.model_dump(mode="json")}


def _version(name: str) -> str | None:
    try:
        return _read_version(name)
    except PackageNotFoundError:
        return None


@cache
def _read_version(name: str) -> str:
    """Of an installed library; reading its metadata takes longer than a small network."""
    return version(name)
