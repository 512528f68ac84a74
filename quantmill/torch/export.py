"""A module becomes an ONNX model that computes the same and still knows its modules and parameters by name."""

from __future__ import annotations

import io
import logging
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir
import torch
from torch.utils import _pytree as pytree

from quantmill.running import output_path
from quantmill.torch import stubs as markers
from quantmill.torch.calls import ExportCall, Structure, result_structure
from quantmill.torch.errors import (
    BatchFixedError,
    ExampleInputsError,
    ExportError,
    definition,
    error_at,
    export_error,
    place_of,
    said_by,
)
from quantmill.torch.graph import tidy
from quantmill.torch.stubs import CalledStubs
from quantmill.torch.verification import compare, threads_here
from service.contracts.arguments import checked
from service.contracts.brief import Brief, Row
from service.contracts.errors import QuantmillError
from worker.quantizer.graph.serialized import save_whole
from worker.quantizer.intake.exported import BATCH, OPSET, free_axis, name_batch
from worker.quantizer.runtime.session import Session

_FOREIGN = frozenset({torch.bfloat16, torch.complex32, torch.complex64, torch.complex128})
_FOREIGN_HINT = "Export the module in float32: module.float()."
_STATIC_HINT = "Give dynamic_batch=False: the model then takes batches of the example's size alone."


@dataclass(frozen=True)
class Input:
    """An input of the exported model.

    Attributes:
        name: in the graph.
        dtype: of the tensor.
        shape: of the example.
        batched: its first axis may have any length; False: as in the example.
    """

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    batched: bool


@dataclass(frozen=True, repr=False)
class Exported(Brief):
    """A module as a float ONNX model.

    Attributes:
        onnx_path: the model; larger than 2 GB, with its weights in a file of this name and ``.data`` beside it.
        call: how the module is called.
        result: what the module returns.
        inputs: of the model, in the order of ``call``.
        outputs: names, in the order of ``result``.
        name: of the module's class.
    """

    onnx_path: Path
    call: ExportCall
    result: Structure
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    name: str

    def _brief(self) -> Iterator[Row]:
        yield "module", self.name
        yield "inputs", ", ".join(f"{entry.name} {list(entry.shape)}" for entry in self.inputs)
        yield "outputs", ", ".join(self.outputs)
        yield "onnx_path", str(self.onnx_path)

    @property
    def sampled(self) -> frozenset[str]:
        """Inputs whose first axis counts samples: the free ones, or all that share one length; none if they do not."""
        free = frozenset(entry.name for entry in self.inputs if entry.batched)
        if free:
            return free
        firsts = {entry.shape[:1] for entry in self.inputs}
        return frozenset(entry.name for entry in self.inputs) if len(firsts) == 1 and firsts != {()} else free


@checked
def export(
    module: torch.nn.Module, example_inputs: Any, path: str | Path | None = None, *, dynamic_batch: bool = True
) -> Exported:
    """Export a module by torch's dynamo exporter, and check that the model computes what the module computes.

    The module runs in eval mode without gradients, on the device that it is on, and is left as it was. Parameters keep
    the names and shapes of ``named_parameters()``, every node the paths of the modules it stands in. Checked are the
    example and, with ``dynamic_batch``, another batch size.

    Args:
        module: called as a whole; what its ``forward`` gets and returns are tensors, in tuples, lists and dicts.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments. Numbers and None
            among them are written into the model.
        path: of the ONNX file; None: a temporary one, gone when this process ends.
        dynamic_batch: the first axis of all inputs that have as many samples as the first one may have any length.

    Raises:
        ExampleInputsError: the inputs do not fit ``forward``, or hold what is neither tensor nor number.
        BatchFixedError: the module works with the example's batch size alone.
        ExportMismatchError: the model computes something else.
        ExportError: the module cannot be exported; names file and line.
        StubError: the module's stubs bound no region, or none is called.
        UnsupportedModelError: onnxruntime refuses the model.
    """
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        raise ExportError(
            f"Expected nn.Module, got {type(module).__name__}.",
            hint="For an ONNX file use `quantmill quantize` or Client().push_model(path)."
            if isinstance(module, str | Path)
            else "Give the nn.Module itself, not a scripted module or a function.",
        )
    call = ExportCall(module, example_inputs)
    with _evaluating(module):
        return _Export(module, call, dynamic_batch).run(output_path(path, "model.onnx"))


class _Export:
    """One export.

    Args:
        module: in eval mode.
        call: the example.
        dynamic_batch: the batch size is to be free.
    """

    def __init__(self, module: torch.nn.Module, call: ExportCall, dynamic_batch: bool) -> None:
        self._module, self._call = module, call
        device = next((tensor.device for tensor in (*module.parameters(), *module.buffers())), torch.device("cpu"))
        self._example = {name: tensor.detach().to(device) for name, tensor in call.example.items()}
        self._batched = _batched(self._example) if dynamic_batch else frozenset()
        for name, tensor in self._example.items():
            if tensor.dtype in _FOREIGN:
                raise ExampleInputsError(
                    f"{name} is {tensor.dtype}, which onnxruntime does not take", hint=_FOREIGN_HINT
                )
        if dynamic_batch and not self._batched:
            raise ExampleInputsError(
                "the first input has no axis of samples", hint="Give a batch of samples, or dynamic_batch=False."
            )

    def run(self, path: Path) -> Exported:
        """Export, check, write to ``path``."""
        stubs = CalledStubs(self._module)
        with stubs:
            result, expected = result_structure(self._run_example())
        more = {}  # the example with its first sample once more
        if self._batched:
            more = {
                name: torch.cat([tensor, tensor[:1]]) if name in self._batched else tensor
                for name, tensor in self._example.items()
            }
        expected_of_more = self._run_batch(more) if more else {}
        # A length of one is traced as one that never changes.
        model = self._trace(more if more and self._size == 1 else self._example)
        stubs.check(model)
        tidy(model, self._module, self._call.names, result.names)
        self._settle_batch(model)
        session = Session(model, threads=threads_here(), what="exported model", uploaded=True)
        compare(session, self._example, expected, "the example inputs")
        if more:
            self._compare_batch(session, more, expected_of_more)
        save_whole(model, path)
        names = [value.name or "" for value in model.graph.inputs]
        inputs = tuple(
            Input(name, tensor.dtype, tuple(tensor.shape), own in self._batched)
            for name, (own, tensor) in zip(names, self._example.items(), strict=True)
        )
        outputs = tuple(value.name or "" for value in model.graph.outputs)
        return Exported(path, self._call, result, inputs, outputs, type(self._module).__name__)

    @property
    def _size(self) -> int:
        return next(iter(self._example.values())).shape[0]

    def _eager(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        bound = self._call.arguments(inputs)
        with torch.no_grad():
            return self._module(*bound.args, **bound.kwargs)

    def _run_example(self) -> Any:
        try:
            return self._eager(self._example)
        except Exception as error:
            place = place_of(error) or definition(self._module)
            detail = f"the module itself fails on the example inputs: {said_by(error)}"
            raise error_at(ExportError, place, detail, hint="Give inputs that module(*inputs) runs on.") from error

    def _run_batch(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        try:
            return result_structure(self._eager(inputs))[1]
        except Exception as error:
            place = place_of(error) or definition(self._module)
            detail = f"the module runs on {self._size} samples but not on {self._size + 1}: {said_by(error)}"
            raise error_at(BatchFixedError, place, detail, hint=_STATIC_HINT) from error

    def _compare_batch(
        self, session: Session, inputs: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
    ) -> None:
        try:
            compare(session, inputs, expected, f"{self._size + 1} samples")
        except QuantmillError as error:  # another result, or none at all
            detail = f"forward was traced for batches of {self._size} samples alone: {error.detail}"
            raise error_at(BatchFixedError, definition(self._module), detail, hint=_STATIC_HINT) from error

    def _trace(self, inputs: Mapping[str, torch.Tensor]) -> ir.Model:
        bound = self._call.arguments(inputs)
        args, kwargs = bound.args, bound.kwargs
        if not kwargs and args and isinstance(args[-1], dict):
            args = (*args, {})  # else the exporter takes the last one for keyword arguments
        noise = io.StringIO()
        try:
            with torch.no_grad(), _quiet(noise), _returning_tensors(self._module):
                program = torch.onnx.export(
                    self._module,
                    args,
                    kwargs=kwargs or None,
                    dynamo=True,
                    optimize=False,
                    verbose=False,
                    opset_version=OPSET,
                    dynamic_shapes=self._dynamic_shapes(),
                    custom_translation_table=markers.translation_table(),
                )
        except Exception as error:  # noqa: BLE001 - all of it becomes one error, with what was said in its details
            found = export_error(error, self._module)
            found.details = "".join([noise.getvalue(), *traceback.format_exception(error)])
            raise found from None  # its traceback is hundreds of lines of the exporter's
        if program is None or program.exported_program is None:
            raise ExportError("torch.onnx.export returned nothing.", hint="Update torch to 2.9 or later.")
        self._refuse_state(program.exported_program)
        return program.model

    def _dynamic_shapes(self) -> dict[str, Any] | None:
        """As torch.export takes them: by parameter of ``forward``, of the same containers as the arguments."""
        if not self._batched:
            return None
        batch = torch.export.Dim(BATCH)
        axes = {name: {0: batch} if name in self._batched else None for name in self._call.names}
        tree = self._call.structure.tree(axes)
        return dict(pytree.tree_map_only((bool, int, float), lambda _: None, tree, is_leaf=_is_axes))

    def _refuse_state(self, program: torch.export.ExportedProgram) -> None:
        changed = sorted(program.graph_signature.buffers_to_mutate.values())
        if changed:
            raise error_at(
                ExportError,
                definition(self._module),
                f"forward changes the buffer {changed[0]!r}; an ONNX model keeps nothing between calls",
                hint="Change buffers under 'if self.training' alone, or take and return the state as tensors.",
                buffer=changed[0],
            )

    def _settle_batch(self, model: ir.Model) -> None:
        """Call the free axis by its name; it has to be one, and as free as was asked."""
        if not self._batched:
            return
        axes = {
            own: free_axis(value)
            for own, value in zip(self._call.names, model.graph.inputs, strict=True)
            if own in self._batched
        }
        symbols = {axis for axis in axes.values() if axis is not None}
        fixed = [own for own, axis in axes.items() if axis is None]
        if fixed or len(symbols) != 1 or not next(iter(symbols)).isidentifier():
            what = (
                f"input {fixed[0]!r} has a batch axis of fixed length" if fixed else "not every batch size is possible"
            )
            raise error_at(
                BatchFixedError,
                definition(self._module),
                f"{what}: forward was traced for batches of {self._size} samples alone",
                hint=f"Take sizes from the tensors (x.shape[0], -1) instead of writing them down. {_STATIC_HINT}",
            )
        name_batch(model, next(iter(symbols)))


def _batched(example: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Inputs with as many samples as the first."""
    first = next(iter(example.values()))
    if first.dim() == 0:
        return frozenset()
    return frozenset(name for name, value in example.items() if value.dim() and value.shape[0] == first.shape[0])


def _is_axes(tree: Any) -> bool:
    return isinstance(tree, dict) and list(tree) == [0]


@contextmanager
def _returning_tensors(module: torch.nn.Module) -> Iterator[None]:
    """The module returns a flat tuple of its result's tensors for a while: the exporter knows nothing else."""

    def flatten(module: torch.nn.Module, arguments: Any, result: Any) -> tuple[torch.Tensor, ...]:
        return tuple(leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor))

    hook = module.register_forward_hook(flatten)
    try:
        yield
    finally:
        hook.remove()


@contextmanager
def _quiet(noise: io.StringIO) -> Iterator[None]:
    """What the exporter prints and logs goes to ``noise`` for a while: what matters is checked, and told by errors."""
    moved = [(handler, handler.setStream(noise)) for handler in _torch_handlers()]
    try:
        with warnings.catch_warnings(), redirect_stdout(noise), redirect_stderr(noise):
            warnings.simplefilter("ignore")
            yield
    finally:
        for handler, stream in moved:
            if stream is not None:
                handler.setStream(stream)


def _torch_handlers() -> Iterator[logging.StreamHandler[Any]]:
    """Where torch's loggers write; many have a handler of their own."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if name.partition(".")[0] == "torch" and isinstance(logger, logging.Logger):
            yield from (handler for handler in logger.handlers if type(handler) is logging.StreamHandler)


@contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Eval mode for a while; every module gets back the mode that it had."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training
