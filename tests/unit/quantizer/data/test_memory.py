"""More samples do not take more memory. Measured in a process of its own, where nothing else allocates."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.support.patience import PATIENCE_SECONDS

SAMPLES, SAMPLE_BYTES = 256, 1 << 20

READ_IT = """
import resource, sys
from pathlib import Path
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.model import TensorInfo
from worker.quantizer.data import inspect_dataset, open_dataset

spec = PreprocessingSpec(inputs={"x": InputSpec(scale=0.5)})
inputs = [TensorInfo(name="x", dtype="float32", shape=("n", 1 << 20))]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
summary = inspect_dataset(Path(sys.argv[1]), spec)
samples = sum(batch.valid for batch in open_dataset(Path(sys.argv[1]), spec).batches(inputs, 4))
print(summary.samples, samples, peak() - before)
"""


def write_archive(path: Path, method: int) -> None:
    """256 MB of noise that repeats itself, written without holding it."""
    noise = np.random.default_rng(0).integers(0, 16, 1 << 12, np.uint8)
    sample = np.tile(noise, SAMPLE_BYTES // noise.size).tobytes()
    with zipfile.ZipFile(path, "w", method, compresslevel=1) as archive, archive.open("x.npy", "w") as member:
        header = {"descr": "|u1", "fortran_order": False, "shape": (SAMPLES, SAMPLE_BYTES)}
        np.lib.format.write_array_header_1_0(member, header)
        for _ in range(SAMPLES):
            member.write(sample)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(zipfile.ZIP_STORED, marks=pytest.mark.long, id="stored"),
        pytest.param(zipfile.ZIP_DEFLATED, id="deflated"),
    ],
)
def test_a_quarter_of_a_gigabyte_is_read_in_less_than_64_mb(tmp_path: Path, method: int) -> None:
    path = tmp_path / "x.npz"
    write_archive(path, method)
    command = [sys.executable, "-c", READ_IT, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    path.unlink()
    assert done.returncode == 0, done.stderr
    summarized, read, grown_bytes = map(int, done.stdout.split())
    assert summarized == read == SAMPLES
    assert grown_bytes < 64e6
