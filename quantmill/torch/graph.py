"""The exporter's graph of a module made fit to be kept, see ``worker.quantizer.intake.exported``."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
import torch

from quantmill.torch import stubs
from worker.quantizer.intake import exported


def tidy(model: ir.Model, module: torch.nn.Module, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Bring the exporter's graph into its lasting form and mark the module's state in it, in place.

    Args:
        model: as ``torch.onnx.export(dynamo=True, optimize=False)`` makes it.
        module: that it was made from.
        inputs: names for its inputs, in their order.
        outputs: names for its outputs, in their order.
    """
    held = (*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False))
    exported.tidy(
        model,
        exported.one_name_each((name, id(tensor)) for name, tensor in held),
        outputs,
        inputs=inputs,
        path_within=lambda caller, path: _path_within(module, caller, path),
        resolve=stubs.resolve_all,
    )
    state = module.state_dict(keep_vars=True).items()
    exported.mark_state(model, [(name, id(tensor)) for name, tensor in state if isinstance(tensor, torch.Tensor)])


def _path_within(module: torch.nn.Module, caller: str, path: str) -> str:
    """The path of a called module by way of its caller, if the caller holds it; else the path that is told."""
    if not caller or not path or path == caller or path.startswith(caller + "."):
        return path
    try:
        holder, called = module.get_submodule(caller), module.get_submodule(path)
    except AttributeError:  # made on the fly: it hangs nowhere
        return path
    names = (name for name, held in holder.named_modules(remove_duplicate=False) if held is called and name)
    return next((f"{caller}.{name}" for name in names), path)
