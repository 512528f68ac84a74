"""A command is there at once: it loads what it needs, and nothing that only others do."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "onnxruntime", "onnx", "numpy", "sqlalchemy", "fastapi", "celery", "alembic")
CODE = f"import sys, worker.cli; print(*(name for name in {HEAVY!r} if name in sys.modules))"


@pytest.mark.slow
def test_the_command_line_loads_neither_engine_nor_database_nor_server() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
