"""Archives of ``torch.export`` become ONNX models.

Reading such an archive can run code of whoever wrote it: this is for a sandboxed process, and for services whose
operator has allowed it (``QUANTMILL_ALLOW_PT2``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from service.contracts.errors import ProgramError
from worker.quantizer.intake.exported import (
    OPSET,
    free_axis,
    free_name,
    mark_state,
    name_batch,
    one_name_each,
    place_name,
    tidy,
)
from worker.quantizer.runtime.session import Session

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# Rounding of float32 in another order leaves 100 dB and more, float16 about 60.
_LEAST_SQNR_DB = 60.0
_LEAST_HALF_SQNR_DB = 35.0
# Around an exact zero there is no signal to compare with.
_ROUNDING = 1e-6
# Operators that behave otherwise in training, by a part of their names: which argument says that it is training.
_TRAINING = {"dropout": 2, "batch_norm": 5}
_SAVE_HINT = "Write it by torch.export.save(torch.export.export(module.eval(), inputs), path) of a near torch."
_EVAL_HINT = "Call module.eval() before torch.export.export."


def read_program(path: Path, *, threads: int) -> ir.Model:
    """The ONNX model of an archive; parameters keep their names and are marked as the state's.

    If the archive holds the example inputs that it was exported with, both are run on them.

    Args:
        path: of the .pt2 file. Its author can run code in this process.
        threads: of the comparison.

    Raises:
        ProgramError: no such archive, or a program of training mode, with changing buffers, that has no ONNX form, or
            whose ONNX form computes something else.
        UnsupportedModelError: the runtime refuses the ONNX model.
    """
    program = _loaded(path)
    _check(program)
    model = _exported(program)
    _tidy(model, program)
    _compare(program, model, threads=threads)
    return model


def _loaded(path: Path) -> ExportedProgram:
    import torch

    try:
        return torch.export.load(path)
    except Exception as error:
        raise ProgramError(
            f"torch.export.load (torch {torch.__version__}) cannot read the archive: {_said_by(error)}",
            hint=_SAVE_HINT,
            pointer="/files/0",
        ) from error


def _check(program: ExportedProgram) -> None:
    changed = sorted(program.graph_signature.buffers_to_mutate.values())
    if changed:
        raise ProgramError(
            f"the program changes the buffer {changed[0]!r}: it was exported in training mode, or keeps state",
            hint=_EVAL_HINT,
            pointer="/files/0",
            buffer=changed[0],
        )
    for node in program.graph.nodes:
        place = next((at for word, at in _TRAINING.items() if word in str(node.target)), None)
        if node.op == "call_function" and place is not None and node.args[place : place + 1] == (True,):
            raise ProgramError(
                f"the program was exported in training mode: {node.name} ({node.target}) behaves otherwise there",
                hint=_EVAL_HINT,
                pointer="/files/0",
                node=node.name,
            )


def _exported(program: ExportedProgram) -> ir.Model:
    import torch

    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        made = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False, opset_version=OPSET)
    except Exception as error:
        raise ProgramError(
            f"the program has no ONNX form: {_said_by(error)}",
            hint="Use operators that torch.onnx.export(dynamo=True) supports, or export to ONNX yourself.",
            pointer="/files/0",
        ) from error
    finally:
        logger.setLevel(level)
    if made is None:
        raise ProgramError("torch.onnx.export gave nothing", hint="Export to ONNX yourself.", pointer="/files/0")
    return made.model


def _tidy(model: ir.Model, program: ExportedProgram) -> None:
    """Bring the exporter's graph into its lasting form and mark the state, by names as quantmill.torch.export gives."""
    state = [(name, _identity(name, tensor)) for name, tensor in program.state_dict.items()]
    held = [*state, *((name, name) for name in program.graph_signature.non_persistent_buffers)]
    tidy(model, one_name_each(held), _output_names(program, len(model.graph.outputs)))
    mark_state(model, state)
    axes = {free_axis(value) for value in model.graph.inputs} - {None}
    symbol = next(iter(axes), None)
    if len(axes) == 1 and symbol is not None and symbol.isidentifier():
        name_batch(model, symbol)


def _identity(name: str, tensor: Any) -> Hashable:
    """The same for names of the same tensor: an archive keeps that they share their bytes, not that they are one."""
    if not tensor.numel():
        return name
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _output_names(program: ExportedProgram, count: int) -> list[str]:
    """By the places of the results in what the module returns; output_0, output_1 ... where these are not told."""
    from torch.export.graph_signature import OutputKind, TensorArgument
    from torch.utils import _pytree as pytree

    specs = [spec for spec in program.graph_signature.output_specs if spec.kind == OutputKind.USER_OUTPUT]
    tree = pytree.tree_unflatten(specs, program.call_spec.out_spec)
    named = tree if isinstance(tree, Mapping) else {"output": tree}
    names: list[str] = []
    for path, spec in pytree.tree_flatten_with_path(named)[0]:
        if isinstance(spec.arg, TensorArgument):
            names.append(free_name(place_name(path), names))
    return names if len(names) == count else [f"output_{k}" for k in range(count)]


def _compare(program: ExportedProgram, model: ir.Model, *, threads: int) -> None:
    """Run both on the example inputs, where the archive holds them.

    Raises:
        ProgramError: an output differs by more than rounding.
    """
    import torch
    from torch.utils import _pytree as pytree

    session = Session(model, threads=threads, what="exported program", uploaded=True)
    if program.example_inputs is None:
        return
    positional, keywords = program.example_inputs
    names = [value.name or "" for value in model.graph.inputs]
    tensors = [leaf for leaf in pytree.tree_leaves((positional, keywords)) if isinstance(leaf, torch.Tensor)]
    if len(tensors) != len(names):
        raise ProgramError(
            f"the program takes {len(tensors)} tensors, its ONNX form {len(names)}: an argument is not used",
            hint="Take arguments that do not matter out of forward.",
            pointer="/files/0",
        )
    with torch.no_grad():
        result = program.module()(*positional, **keywords)
    wanted = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    found = session.run({name: tensor.detach().cpu().numpy() for name, tensor in zip(names, tensors, strict=True)})
    _check_equal([tensor.detach().cpu().numpy() for tensor in wanted], found)


def _check_equal(wanted: Sequence[np.ndarray[Any, Any]], found: Sequence[Any]) -> None:
    for k, (expected, got) in enumerate(zip(wanted, found, strict=True)):
        least = _LEAST_HALF_SQNR_DB if expected.dtype == np.float16 else _LEAST_SQNR_DB
        sqnr_db = _sqnr_db(expected, np.asarray(got))
        if sqnr_db < least:
            raise ProgramError(
                f"output {k} of the ONNX model differs from the program's on its example inputs: {sqnr_db:.1f} dB",
                hint="Export to ONNX with quantmill.torch.export, which reports more details.",
                pointer="/files/0",
                output=k,
            )


def _sqnr_db(expected: np.ndarray[Any, Any], got: np.ndarray[Any, Any]) -> float:
    """Signal to noise in dB; inf for equal values, -inf for another shape or where only one side is finite."""
    if expected.shape != got.shape or not np.array_equal(np.isfinite(expected), np.isfinite(got)):
        return -math.inf
    finite = np.isfinite(expected)
    signal, other = expected[finite].astype(np.float64), got[finite].astype(np.float64)
    noise = float(np.square(signal - other).sum())
    if np.abs(signal - other).max(initial=0.0) <= _ROUNDING:
        return math.inf
    power = float(np.square(signal).sum())
    return 10 * math.log10(power / noise) if power else -math.inf


def _said_by(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:300]}" if lines else type(error).__name__
