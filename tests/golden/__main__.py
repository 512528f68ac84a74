"""Compute the golden table and show what differs from the kept one; ``--write`` keeps the new one.

python -m tests.golden [--write] [WORDS OF A NAME ...]

Sums of BLAS and torch have other bits on more threads: as in the tests, and in a runner's BLAS, there is one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from tests.golden.cases import CASES, digest
from tests.golden.table import read


def main(words: list[str]) -> int:
    write = "--write" in words
    wanted = [word for word in words if word != "--write"]
    kept, table = read(), {}
    for name, case in CASES.items():
        if wanted and not any(word in name for word in wanted):
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            table[name], fates = digest(case, Path(folder))
        word = "new" if name not in kept.here else "same" if kept.here[name] == table[name] else "CHANGED"
        print(f"{word:7} {time.monotonic() - begin:6.1f} s  {name} ({fates})", flush=True)
    if write:
        kept.with_hashes(table).write()
    changed = any(kept.here.get(name) != found for name, found in table.items())
    return int(changed and not write)


sys.exit(main(sys.argv[1:]))
