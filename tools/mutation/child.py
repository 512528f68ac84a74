"""What a Python process does first that a recorded test has started: see ``record``. Loads as little as can be."""

import importlib.util
import os
import time
from typing import Any

FOLDER, TEST = "QUANTMILL_TEST_RECORD", "QUANTMILL_TEST_RECORDED"
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120


def calls() -> Any:
    """The compiled hook, made once per folder."""
    spec = importlib.util.spec_from_file_location("calls", os.environ[FOLDER] + "/calls.so")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_recording = False


def record() -> None:
    """Note every function that this process runs, for the test that started it."""
    global _recording  # the file of a virtual environment is read twice
    if _recording:
        return
    _recording = True
    path = f"{os.environ[FOLDER]}/child-{os.getpid()}-{time.monotonic_ns()}.txt"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(descriptor, f"{os.environ[TEST]}\n".encode())
    calls().start(f"{ROOT}/", descriptor)
