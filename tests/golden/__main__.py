"""Compute the golden table and show what differs from the kept one; ``--write`` keeps the new one.

python -m tests.golden [--write] [WORDS OF A NAME ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from tests.golden.cases import CASES, digest
from tests.golden.table import TABLE, machine, read


def main(words: list[str]) -> int:
    write = "--write" in words
    wanted = [word for word in words if word != "--write"]
    kept = read()
    table, changed = dict(kept.hashes), 0
    for name, case in CASES.items():
        if wanted and not any(word in name for word in wanted):
            continue
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found, fates = digest(case, Path(folder))
        same = table.get(name) == found
        changed += not same
        print(f"{'same   ' if same else 'CHANGED'} {time.monotonic() - begin:6.1f} s  {name} ({fates})", flush=True)
        table[name] = found
    if write:
        document = {"machine": machine(), "hashes": {name: table[name] for name in CASES if name in table}}
        TABLE.write_text(json.dumps(document, indent=1) + "\n")
    return int(changed > 0 and not write)


sys.exit(main(sys.argv[1:]))
