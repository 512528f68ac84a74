"""sympy is loaded by the first model that needs it, in any thread, and by nobody else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.source import ROOT

pytestmark = pytest.mark.slow  # starts processes

HEAD = "import worker.quantizer, sys, onnx_ir as ir; assert 'sympy.core' not in sys.modules\n"


def run_python(code: str, head: str = HEAD) -> str:
    done = subprocess.run(
        [sys.executable, "-c", head + code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def test_named_dimensions_are_computed_with_and_one_that_was_loaded_before_stays() -> None:
    code = "n = ir.SymbolicDim('N'); print(n + 1, n * 2 - n, ir.SymbolicDim('floor(M/2)') + n, isinstance(n, str))"
    assert run_python(code) == "N + 1 N N + floor(M/2) False"
    code = "import sympy, worker.quantizer, onnx_ir; print(onnx_ir._core.sympy is sympy, type(sympy).__name__)"
    assert run_python(code, head="") == "True module"


def test_many_threads_may_be_the_first() -> None:
    code = (
        "from concurrent.futures import ThreadPoolExecutor; import threading\n"
        "start = threading.Barrier(8)\n"
        "def work(k):\n"
        "    start.wait()\n"
        "    return str(ir.SymbolicDim('N') + k)\n"
        "print(*ThreadPoolExecutor(8).map(work, range(1, 9)), sep=', ')"
    )
    assert run_python(code) == ", ".join(f"N + {k}" for k in range(1, 9))
