"""A process that has loaded the engine and forks for each case: ``python -m tests.security.corpus.zygote``.

Takes one task per line, does it in a child under limits that the kernel holds, and says how the child has ended.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from service.contracts.runner import TASK_ADAPTER, ErrorLine, RunnerLine
from worker.runner import execute

FILE_BYTES = 1 << 20
# What a runner loads.
LOADED_ONCE = (
    *("onnxscript.optimizer", "worker.quantizer.data", "worker.quantizer.intake.made"),
    *(f"PIL.{codec}ImagePlugin" for codec in ("Bmp", "Jpeg", "Png", "WebP")),
)


def address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def in_child(order: dict[str, Any], answer: int) -> int:
    """Do the task under its limits; the last line goes to the descriptor ``answer``."""
    memory, cpu = address_space_bytes() + order["memory_bytes"], order["cpu_seconds"]
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.chdir(order["folder"])
    os.environ["TMPDIR"] = order["folder"]
    last: list[RunnerLine] = []
    code = execute(TASK_ADAPTER.validate_python(order["task"]), last.append, lambda: None)
    found: dict[str, Any] = {}
    if last:
        line = last[-1]
        found = line.problem.model_dump(mode="json") if isinstance(line, ErrorLine) else {"code": "ready"}
    os.write(answer, json.dumps(found).encode()[: 1 << 16])
    return code


def main() -> None:
    for line in sys.stdin:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            code = 99
            try:
                code = in_child(json.loads(line), write)
            finally:
                os._exit(code)
        os.close(write)
        with os.fdopen(read, "rb") as stream:
            found = stream.read()
        _, status, usage = os.wait4(child, 0)
        answer = {
            "exit": os.waitstatus_to_exitcode(status),
            "problem": json.loads(found) if found else {},
            "cpu_seconds": usage.ru_utime + usage.ru_stime,
            "peak_bytes": usage.ru_maxrss * 1024,
            "base_bytes": resident_bytes(),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    for module in LOADED_ONCE:
        importlib.import_module(module)
    main()
