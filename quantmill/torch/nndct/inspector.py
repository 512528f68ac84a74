"""``Inspector``: which layers a target runs quantized, and why it does not run the others so; without data."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch import nn

from quantmill.torch import export
from quantmill.torch.nndct.errors import NotOfferedError
from quantmill.torch.nndct.recipe import make_recipe
from quantmill.torch.verification import threads_here
from service.contracts.graph_view import Inspection, NodeInspection
from worker.quantizer.graph.metadata import module_paths
from worker.quantizer.modes.planning import inspect_file


class Inspector:
    """Tells what a target would run quantized.

    Args:
        name_or_fingerprint: Vitis AI's name of a target (AMD_AIE2_Nx4_Overlay_cfg0) or ours (amd_npu_cnn).

    Raises:
        InvalidConfigError: there is no such target.
    """

    def __init__(self, name_or_fingerprint: str) -> None:
        self._target = name_or_fingerprint
        self._config, _ = make_recipe(nn.Identity(), target=self._target, bitwidth=None, quant_config_file=None)

    def inspect(
        self,
        module: nn.Module,
        input_args: Any,
        device: torch.device | str | None = None,
        output_dir: str | Path = "quantize_result",
        verbose_level: int = 1,
        image_format: str | None = None,
    ) -> Inspection:
        """Print what becomes of the layers, and write it to ``inspect_<target>.txt``.

        Args:
            module: float.
            input_args: example arguments.
            device: has no effect: nothing is computed but one example.
            output_dir: where the file is written.
            verbose_level: 0 prints nothing, 1 the layers that stay in float, 2 all layers. The file has all.
            image_format: refused.

        Returns:
            The same as a record.

        Raises:
            ExportError: the module cannot be exported.
            NotOfferedError: an image was asked for.
        """
        if image_format is not None:
            raise NotOfferedError(f"image_format={image_format!r} is not offered", hint="The file lists every layer.")
        exported = export(module, input_args)
        told = inspect_file(exported.onnx_path, self._config, threads=threads_here())
        modules = {node.name: _module(node) for node in ir.load(exported.onnx_path).graph.all_nodes()}
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"inspect_{self._target}.txt"
        path.write_text("\n".join(_lines(told, modules, self._target, everything=True)) + "\n")
        if verbose_level > 0:
            sys.stdout.write("\n".join(_lines(told, modules, self._target, everything=verbose_level > 1)) + "\n")
        return told


def _lines(told: Inspection, modules: dict[str | None, str], target: str, *, everything: bool) -> Iterator[str]:
    yield f"Target {target} ({told.target}): {told.summary}"
    for node in told.nodes:
        if everything or not node.quantized:
            yield _line(node, modules.get(node.name, ""))
    yield from told.notes


def _line(node: NodeInspection, module: str) -> str:
    where = f"{module} ({node.op}, {node.name})" if module else f"{node.op}, {node.name}"
    fate = "quantized" if node.quantized else "float"
    why = f": {node.reason}" if node.reason else ""
    hint = f" [{node.hint}]" if node.hint and not node.quantized else ""
    return f"  {fate:<10}{where}{why}{hint}"


def _module(node: ir.Node) -> str:
    paths = module_paths(node)
    return paths[-1] if paths else ""
