"""Fuzzing by coverage: ``python -m tests.security.fuzzing KIND SECONDS``. Exits with 0 if nothing is found."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

# What decides over a file's bytes; to watch all that is loaded would take minutes before the first file is read.
WATCHED = ["worker.quantizer.data", "worker.quantizer.intake", "zipfile", "tarfile"]
LONGEST_BYTES = 1 << 16
ONE_FILE_SECONDS = 20
LARGEST_ALLOCATION_MIB = 1024


def main(kind: str, seconds: int) -> None:
    with atheris.instrument_imports(include=WATCHED):
        from tests.security import fuzzed

    with tempfile.TemporaryDirectory() as name:
        seeds, scratch = Path(name) / "seeds", Path(name) / "scratch"
        seeds.mkdir()
        scratch.mkdir()
        for number, raw in enumerate(fuzzed.TIMED[kind][1]):
            (seeds / str(number)).write_bytes(raw)
        # The peak that is measured is also that of the process that started this one; single allocations are bounded.
        memory = ["-rss_limit_mb=0", f"-malloc_limit_mb={LARGEST_ALLOCATION_MIB}"]
        limits = [f"-max_total_time={seconds}", f"-max_len={LONGEST_BYTES}", f"-timeout={ONE_FILE_SECONDS}", *memory]
        found = f"-artifact_prefix={tempfile.gettempdir()}/"
        atheris.Setup([sys.argv[0], "-seed=1", *limits, found, str(seeds)], fuzzed.reader(kind, scratch))
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
