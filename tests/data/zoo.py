"""The models of the zoo and real inputs for them: each model is loaded once, and each input made once, per process."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from tests.support.data import required_data_dir

Feeds = dict[str, np.ndarray]

_USUAL = 6


@cache
def _generator() -> ModuleType:
    """The generator of real inputs that comes with the models."""
    spec = importlib.util.spec_from_file_location("zoo_feed", required_data_dir() / "zoo" / "feed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def model_path(name: str) -> Path:
    zoo = required_data_dir() / "zoo"
    return zoo / name / "model.onnx" if (zoo / name).is_dir() else zoo / f"{name}.onnx"


def session_of(model: bytes | Path, *, optimized: bool = True) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )


@lru_cache(maxsize=2)  # the tests of one model come one after the other
def reference(name: str) -> ort.InferenceSession:
    return session_of(model_path(name))


def run(session: ort.InferenceSession, feeds: Feeds) -> Feeds:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@cache
def _made(name: str, count: int) -> list[Feeds]:
    return _generator().feeds(name, count, run=lambda sample: run(reference(name), sample))


def feeds_of(name: str, count: int) -> list[Feeds]:
    """The first ``count`` inputs; models with state are driven frame by frame by the float model."""
    return _made(name, max(count, _USUAL))[:count]


def whole_inputs(feeds: list[Feeds], path: Path) -> Path:
    """Every sample a whole input, with one axis more than the input has."""
    np.savez(path, **{key: np.stack([sample[key] for sample in feeds]) for key in feeds[0]})
    return path


def mostly_long(names: Iterable[str], *short: str) -> list[Any]:
    """Values of a parameter: all but ``short`` belong to the long lane."""
    names = list(names)
    assert set(short) <= set(names)
    return [name if name in short else pytest.param(name, marks=pytest.mark.long) for name in names]
