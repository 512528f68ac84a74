"""The craft: a pure library that turns a float ONNX model into a quantized one. No Celery, no SQLAlchemy, no HTTP.

Modules that cost a process much of its start, and that few models ever need, are loaded when they are first used:
onnx_ir reads sympy, which takes longer than all of onnx and onnxruntime, for arithmetic on named dimensions alone.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# onnxruntime's own builds would tell their maker of the models that they run, from a thread that they start at once.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Those that onnx_ir imports at once, the first of which must be installed.
_LATE = ("sympy", "onnx_ir._symbolic_shapes")
_STEPPING_ASIDE = threading.Lock()


class _Later(ModuleType):
    """Stands for a module until something of it is asked for; any number of threads may ask first."""

    def __getattr__(self, name: str) -> Any:
        """Of the module itself, which from then on is the one that everybody imports."""
        full_name = self.__name__
        with _STEPPING_ASIDE:
            if sys.modules.get(full_name) is self:
                del sys.modules[full_name]
        return getattr(importlib.import_module(full_name), name)


if "onnx_ir" not in sys.modules and find_spec(_LATE[0]) is not None:
    for _name in _LATE:
        sys.modules.setdefault(_name, _Later(_name))
