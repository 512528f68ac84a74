"""Which initializers are of a module's state: new weights find their places by these marks."""

from __future__ import annotations

import json

import onnx_ir as ir
import torch

from worker.quantizer.intake.state import STATE_NAMES


def mark_state(model: ir.Model, module: torch.nn.Module) -> None:
    """Mark the initializers that ``module.state_dict()`` holds with all the names that it has for them, in place.

    Args:
        model: exported of ``module``, its parameters under their names.
        module: whose tensors of one storage count as one tensor with several names.
    """
    names: dict[int, list[str]] = {}
    for name, tensor in module.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor):
            names.setdefault(id(tensor), []).append(name)
    of_name = {name: same for same in names.values() for name in same}
    for name, value in model.graph.initializers.items():
        if name in of_name:
            value.metadata_props[STATE_NAMES] = json.dumps(of_name[name])
