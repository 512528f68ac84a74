"""Who imports whom, and what a process has loaded once it has: asked of an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter

import grimp
import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.source import ROOT

pytestmark = pytest.mark.slow  # starts processes

ENGINE = {"torch", "onnxruntime", "onnx", "onnx_ir", "onnxscript", "safetensors", "sklearn", "PIL"}
OTHERS = {"sqlalchemy", "fastapi", "celery", "httpx"}
# Loaded once there is something to send.
NETWORK = {"httpx", "httpcore", "h11"}
# What a process with these modules must not have loaded.
NEVER = {
    "quantmill": ENGINE | OTHERS | {"numpy", "worker", "service"},
    "service.app service.cli service.client": ENGINE | {"worker"},
    "service.contracts.runner": ENGINE,
    "worker.pool worker.celery_app worker.supervisor worker.reconcile.loops": ENGINE | {"numpy", "fastapi"} | NETWORK,
    # processes of their own, started again and again: every one pays for what it loads
    "worker.cli worker.process": ENGINE | {"numpy", "fastapi", "jinja2", "rich"} | NETWORK,
    "worker.runner worker.quantizer.pipeline": {"torch", "sympy.core", "sqlalchemy", "fastapi", "celery", "httpx"},
}


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_import_contracts_are_kept() -> None:
    run_python(
        "from importlinter.cli import lint_imports; raise SystemExit(lint_imports('pyproject.toml', no_cache=True))"
    )


def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    """Whenever they do it: at the top, for types alone, or within a function."""
    graph = grimp.build_graph("quantmill", "service", "worker", "benchmarks", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 500
    TopologicalSorter(imports).prepare()  # refuses a cycle, and names it


@pytest.mark.parametrize("modules", NEVER)
def test_the_api_server_and_the_parents_never_load_the_engine(modules: str) -> None:
    code = f"import {', '.join(modules.split())}, sys; print(*sorted({NEVER[modules]} & set(sys.modules)))"
    assert run_python(code).split() == []


def test_contracts_load_nothing_but_pydantic() -> None:
    loaded = run_python(
        "import pkgutil, sys, importlib, service.contracts as c\n"
        "[importlib.import_module(m.name) for m in pkgutil.walk_packages(c.__path__, 'service.contracts.')]\n"
        f"print(*sorted({ {'numpy'} | OTHERS } & set(sys.modules)))"
    )
    assert loaded.split() == []
