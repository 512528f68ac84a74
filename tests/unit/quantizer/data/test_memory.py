"""More samples do not take more memory. Measured in a process of its own, where nothing else allocates."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.media import archive, encoded, noise
from tests.support.patience import PATIENCE_SECONDS

SAMPLES, SIDE = 163, 512
SHAPE = (SIDE, SIDE, 3)
READ_IT = """
import json, resource, sys
from pathlib import Path
from service.contracts.dataset import PreprocessingSpec
from service.contracts.model import TensorInfo
from worker.quantizer.data import inspect_dataset, open_dataset

path, spec = Path(sys.argv[1]), PreprocessingSpec.model_validate(json.loads(sys.argv[2]))
inputs = [TensorInfo(name="x", dtype="float32", shape=("n", *json.loads(sys.argv[3])))]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
from worker.quantizer.data.media import picture  # Pillow's own libraries are not what is measured
before = peak()
summary = inspect_dataset(path, spec)
samples = sum(batch.valid for batch in open_dataset(path, spec).batches(inputs, 2))
print(summary.samples, samples, peak() - before)
"""


def write_arrays(path: Path, method: int) -> None:
    """Noise that repeats itself, written without holding it."""
    line = np.random.default_rng(0).integers(0, 16, (1, SIDE, 3), np.uint8)
    sample = np.tile(line, (SIDE, 1, 1)).tobytes()
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as made, made.open("images.npy", "w") as member:
        header = {"descr": "|u1", "fortran_order": False, "shape": (SAMPLES, *SHAPE)}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(SAMPLES):
            member.write(sample)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", ["deflated", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("stored", "pictures"))]
)
def test_128_mb_are_read_in_less_than_64_mb(tmp_path: Path, kind: str) -> None:
    path, spec = tmp_path / "x", {"inputs": {"x": {"array": "images", "scale": 0.5}}}
    if kind == "pictures":
        small = encoded(noise(8, 8))
        archive(path, {f"{k}.png": small for k in range(SAMPLES)}, "tar.gz")
        resize: dict[str, Any] = {"size": [SIDE, SIDE], "interpolation": "nearest"}
        spec |= {"pictures": {"resize": resize}}
    else:
        write_arrays(path, zipfile.ZIP_STORED if kind == "stored" else zipfile.ZIP_DEFLATED)
    command = [sys.executable, "-c", READ_IT, str(path), json.dumps(spec), json.dumps(SHAPE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    summarized, read, grown_bytes = map(int, done.stdout.split())
    assert summarized == read == SAMPLES
    assert grown_bytes < 64e6
