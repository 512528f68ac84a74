"""Modules that cost a process much of its start, and that few models ever need: loaded when they are first used.

onnx_ir reads sympy, which takes longer than all of onnx and onnxruntime, for arithmetic on named dimensions alone.
"""

from __future__ import annotations

import importlib
import sys
import threading
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_READER = "onnx_ir"
# Those that it imports at once, the first of which must be installed.
_NAMES = ("sympy", "onnx_ir._symbolic_shapes")
_STEPPING_ASIDE = threading.Lock()


class Later(ModuleType):
    """Stands for a module until something of it is asked for; any number of threads may ask first."""

    def __getattr__(self, name: str) -> Any:
        """Of the module itself, which from then on is the one that everybody imports."""
        full_name = self.__name__
        with _STEPPING_ASIDE:
            if sys.modules.get(full_name) is self:
                del sys.modules[full_name]
        return getattr(importlib.import_module(full_name), name)


def load_later() -> None:
    """Keep the modules away until they are used; nothing is done where somebody has loaded them already."""
    if _READER in sys.modules or find_spec(_NAMES[0]) is None:
        return
    for name in _NAMES:
        sys.modules.setdefault(name, Later(name))
