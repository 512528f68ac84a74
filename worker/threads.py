"""How the native libraries use threads: as many as a job may have, and none that spins while it waits.

A thread that spins takes the core of the one that it waits for. Alone on a machine that costs a little; beside other
work it costs half of the time. What is set here has effect only before the libraries are imported.
"""

from __future__ import annotations

import os

_COUNTS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
# OpenBLAS waits by spinning, whatever it is told: the engine cuts large products into pieces for threads of its own.
_QUIET = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    # A microsecond: threads that meet again at once need not be woken, others lose nothing by it.
    "GOMP_SPINCOUNT": "1000",
    "KMP_BLOCKTIME": "0",
}


def set_threads(threads: int) -> None:
    """Tell the native libraries how many threads they may use, and how these wait."""
    for name in _COUNTS:
        os.environ[name] = str(threads)
    wait_quietly()


def wait_quietly() -> None:
    """Tell the native libraries not to spin; what the environment says already stands."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
