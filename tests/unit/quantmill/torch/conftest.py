"""Shared by the tests of torch's door."""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from quantmill.running import output_path
from quantmill.torch import export
from quantmill.torch.export import Exported

_DOORS = ("quantmill.torch.qat", "quantmill.torch.quantize", "quantmill.torch.nndct.deployment")


def _digest(*values: Any) -> str:
    found = hashlib.sha256()
    for value in values:
        if isinstance(value, torch.Tensor):
            found.update(repr((value.shape, value.dtype)).encode() + value.detach().contiguous().numpy().tobytes())
        else:
            found.update(repr(value).encode())
    return found.hexdigest()


@pytest.fixture(scope="session", autouse=True)
def _export_once() -> Iterator[None]:
    """An export takes most of a small test: the same network with the same example is exported once.

    Those that test the export itself call ``export``, which remembers nothing.
    """
    known: dict[str, tuple[Exported, bytes]] = {}

    def remembered(
        module: nn.Module, example: Any, path: str | Path | None = None, *, dynamic_batch: bool = True
    ) -> Exported:
        leaves, structure = pytree.tree_flatten(example)
        parts = [(name, part.training) for name, part in module.named_modules()]
        state = module.state_dict()
        key = _digest(type(module), module, parts, dynamic_batch, structure, *leaves, *state, *state.values())
        if key not in known:
            exported = export(module, example, path, dynamic_batch=dynamic_batch)
            known[key] = exported, exported.onnx_path.read_bytes()
        exported, written = known[key]
        here = output_path(path, "model.onnx")
        here.write_bytes(written)
        return replace(exported, onnx_path=here)

    with pytest.MonkeyPatch.context() as patch:
        for door in _DOORS:
            patch.setattr(importlib.import_module(door), "export", remembered)
        yield
