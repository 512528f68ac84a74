"""What the door for PyTorch refuses, and failures of an export in words: where, why, and what to do."""

from __future__ import annotations

import inspect
import os
import re
import sysconfig
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import onnx_ir
import onnxscript
import torch

import quantmill
from service.contracts.errors import DatasetError, QuantmillError


class ExportError(QuantmillError, code="export-failed", title="The module cannot be exported", status=422):
    """The module cannot be exported to ONNX; ``where`` names file and line of the user's code where they are known.

    Attributes:
        details: all that torch's exporter printed and raised, "" where it was not asked.
    """

    details = ""


class ExampleInputsError(ExportError, code="export-inputs", title="The module cannot be called like this"):
    """The example inputs do not fit the module, or hold something that is no input of an ONNX model."""


class BatchFixedError(ExportError, code="export-batch-fixed", title="The module's batch size is fixed"):
    """The module works with one batch size only."""


class ExportMismatchError(ExportError, code="export-mismatch", title="The exported model differs from the module"):
    """The exported model computes something else than the module; ``where`` names the output and the distance."""


class LoaderError(DatasetError, code="invalid-loader", title="The data loader does not fit the module"):
    """What a data loader gives does not fit the module; ``where`` names the batch."""


# Failures of an export in words: where in the user's code, why, and what to do.

Place = tuple[str, int]
# Code between the user's lines and the failure.
_MACHINERY = tuple(
    os.path.dirname(os.path.abspath(package.__file__ or "")) + os.sep  # noqa: PTH100, PTH120 - prefixes of strings
    for package in (torch, onnxscript, onnx_ir, quantmill)
)
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_MADE = ("<eval_with_key>", "<frozen ", "<__torch", "<torch_package")
_STACK_LINE = re.compile(r'File "([^"]+)", line (\d+)')
_FIRST_SENTENCES = 400
_DATA_DEPENDENT = (
    "Which operations run depends on tensor values here; an exported graph is fixed. Replace if and while by "
    "torch.where or torch.cond, selected rows by masks, and remove .item() and .tolist(); or move this part out of "
    "the module."
)
_UNSUPPORTED = (
    "ONNX has no such operator. Express it by others, or move it out of the module (and run it before or after)."
)
_PLAIN = "The exporter's output and its traceback are in the exception's `details`."


def error_at(kind: type[ExportError], place: Place, detail: str, *, hint: str, **where: Any) -> ExportError:
    """An error that names file and line of the user's code."""
    file, line = place
    return kind(f"{file}:{line}: {detail}", hint=hint, file=file, line=line, **where)


def export_error(error: BaseException, module: torch.nn.Module) -> ExportError:
    """The exporter's failure as an ``ExportError`` that names file and line of the user's code."""
    causes = list(_causes(error))
    text = "\n".join(str(cause) for cause in causes)
    operator = _missing_operator(text)
    if operator is not None:
        detail, hint = f"ONNX has no translation of {operator}", _UNSUPPORTED
    elif _is_data_dependent(causes, text):
        detail, hint = "forward branches on tensor values", _DATA_DEPENDENT
    else:
        detail, hint = f"torch.export failed: {_first_sentences(causes)}", _PLAIN
    return error_at(ExportError, place_of(error) or definition(module), detail, hint=hint, operator=operator)


def place_of(error: BaseException) -> Place | None:
    """The innermost line of the user's code that ``error`` came through; None if it came through none."""
    for cause in _causes(error):
        found = _of_operator(cause.__traceback__) or _of_frames(cause.__traceback__)
        if found is not None:
            return found
    return None


def definition(module: torch.nn.Module) -> Place:
    """Where ``forward`` of the module is defined; ("<unknown>", 0) for one that was typed into a prompt."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return ("<unknown>", 0) if code is None else (code.co_filename, code.co_firstlineno)


def said_by(error: BaseException) -> str:
    """The error's own words, its kind before them, cut to what a person reads."""
    return f"{type(error).__name__}: {_shortened(str(error))}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and what caused it, the first cause first."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    yield from reversed(chain)


def _of_frames(traceback: TracebackType | None) -> Place | None:
    found = None
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if _is_users(file):
            found = (file, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def _of_operator(traceback: TracebackType | None) -> Place | None:
    """Where the operator stood that was being translated: the translator's frames hold its node of the traced graph."""
    found = None
    while traceback is not None:
        node = traceback.tb_frame.f_locals.get("node")
        if isinstance(node, torch.fx.Node):
            found = _of_stack(str(node.meta.get("stack_trace") or "")) or found
        traceback = traceback.tb_next
    return found


def _of_stack(text: str) -> Place | None:
    users = [(file, int(line)) for file, line in _STACK_LINE.findall(text) if _is_users(file)]
    return users[-1] if users else None


def _is_users(file: str) -> bool:
    if file.startswith((*_MACHINERY, *_MADE)):
        return False
    return not file.startswith(_STDLIB) or "site-packages" in file


def _missing_operator(text: str) -> str | None:
    found = re.search(r"No ONNX function found for (.+?)\. Failure message", text, re.DOTALL)
    if found is None:
        return None
    overload = re.search(r"OpOverload\(op='([^']+)'(?:, overload='([^']+)')?", found.group(1))
    return found.group(1).strip() if overload is None else overload.group(1)


def _is_data_dependent(causes: list[BaseException], text: str) -> bool:
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    if any(isinstance(cause, GuardOnDataDependentSymNode) for cause in causes):
        return True
    return "data-dependent" in text.lower()


def _first_sentences(causes: list[BaseException]) -> str:
    """The words of the first cause that has any."""
    told: list[Any] = [cause for cause in causes if str(cause).strip()]
    return said_by(told[0]) if told else type(causes[0]).__name__


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _FIRST_SENTENCES else line[:_FIRST_SENTENCES] + " ..."
