"""The command blocks of README.md and docs/, and a place where they run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

from service.contracts.dataset import PreprocessingSpec
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import make_model
from tests.worker.running import QUICK, environment, processes_of
from worker import launcher

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
HOW_TO = [page for page in PAGES if page.parent.name == "how-to" and page.stem != "nightly"]
SERVE = ".venv/bin/quantmill up"
# How the pages feed images of 8 bits.
PREPROCESSING = """{"inputs": {"input": {"array": "images", "layout": "NHWC", "scale": 0.00392156862745098,
                      "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}}}"""
_SAMPLES = 24
# That a block may run, one after the other.
_JOBS_OF_BLOCK = 3


def fenced(page: Path, language: str) -> list[str]:
    """All blocks of a page in that language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def make_workplace(folder: Path) -> None:
    """What the pages name: an installation, the examples of the checkout, a model, and images of 8 bits with labels."""
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "examples").symlink_to(ROOT / "examples")
    shipped = Path("service", "dashboard", "examples")
    (folder / shipped.parent).mkdir(parents=True)
    (folder / shipped).symlink_to(ROOT / shipped)
    make_model(folder / "model.onnx")
    model = onnx.load(folder / "model.onnx")
    model.graph.input[0].name = model.graph.node[0].input[0] = "input"
    onnx.save(model, folder / "model.onnx")
    rng = np.random.default_rng(3)
    for name in ("calibration", "evaluation"):
        # each of a tint of its own, without which nearly all would be of one class
        tints, grain = rng.integers(0, 192, (_SAMPLES, 1, 1, 3)), rng.integers(0, 64, (_SAMPLES, 8, 8, 3))
        pictures = (tints + grain).astype(np.uint8)
        # the model is right about them: of one that guesses nothing is said
        labels = scores_of(folder / "model.onnx", pictures).argmax(axis=1)
        np.savez(folder / f"{name}.npz", images=pictures, labels=labels)


def scores_of(model: Path, images: np.ndarray) -> np.ndarray:
    """What a model makes of pictures that are fed as the pages say."""
    spec = PreprocessingSpec.model_validate_json(PREPROCESSING).inputs["input"]
    pictures = ((images * spec.scale - spec.mean) / spec.std).transpose(0, 3, 1, 2).astype(np.float32)
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, {"input": pictures})[0]
    return found


def check_quantized(path: Path, folder: Path) -> None:
    """The file holds Q/DQ pairs, and onnxruntime makes nearly the float model's scores with it on the pictures."""
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load(path).graph.node)
    images = np.load(folder / "evaluation.npz")["images"]
    scores = [scores_of(model, images) for model in (folder / "model.onnx", path)]
    assert scores[0].shape == (_SAMPLES, 5)
    error = np.square(scores[1] - scores[0]).mean() / np.square(scores[0]).mean()
    assert error < 0.01, f"the quantized model is off by {error:.3f} of the scores' power"


def run_block(block: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A block, saved as a file and run, in ``folder``."""
    script = folder / "block.sh"
    script.write_text(block)
    return subprocess.run(
        ["bash", script.name], cwd=folder, env=environment(QUANTMILL_THREADS="1", **variables), capture_output=True,
        text=True, timeout=_JOBS_OF_BLOCK * PATIENCE_SECONDS,
    )  # fmt: skip


@contextmanager
def served(block: str, folder: Path) -> Iterator[str]:
    """The service that a block starts, on a free port; its address.

    ``exec`` alone is put in front of its last command, so that the signal that ends it finds the service.
    """
    assert block.count(SERVE) == 1
    (folder / "up.sh").write_text(block.replace(SERVE, f"exec {SERVE}"))
    spec = json.dumps({"parent": os.getpid(), "death_signal": signal.SIGTERM})
    with (folder / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", launcher.__file__, spec, shutil.which("bash") or "bash", "up.sh"],
            cwd=folder,
            env=environment(**QUICK, QUANTMILL_PORT="0", QUANTMILL_OPEN="false"),
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        line = process.stdout.readline().decode()
        urls = [word for word in line.split() if word.startswith("http://")]
        assert urls, (folder / "up.log").read_text()
        yield urls[0]
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE_SECONDS)
        finally:
            for pid in processes_of(folder):  # nothing may outlive a test
                os.kill(pid, signal.SIGKILL)
            process.stdout.close()
