"""QuantStub and DeQuantStub, where quantized regions begin and end, and the operators that mark them.

In PyTorch both are identities. While a module is exported each call leaves a marker, a node of the domain
``quantmill``; ``quantmill.torch.regions`` makes regions of the markers and takes them out of the graph again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import onnx.defs
import onnx_ir as ir
import torch
from onnxscript import values
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from quantmill.torch.regions import BEGIN, DOMAIN, END, StubError, has_markers, resolve_regions

# Operators that mean something to the exporter's reader and nothing to ONNX.
#
# A marker is a custom operator of torch that survives ``torch.export``. It is translated into nodes of a domain of
# ours, and resolved once the graph is whole: what it marks is written down, and the nodes go, so that any runtime can
# run the model. Whoever defines such an operator registers it here.


@dataclass(frozen=True)
class Marker:
    """A family of marker operators.

    Attributes:
        name: of the family; registered once.
        resolve: takes the exported model, whose constants are folded and whose nodes carry their modules' paths, and
            removes the markers' nodes; changes the model in place.
        translations: what ``torch.onnx.export`` takes as custom_translation_table: the operator's overload -> a
            function of onnxscript that makes the marker's node.
    """

    name: str
    resolve: Callable[[ir.Model], None]
    translations: Mapping[Any, Callable[..., Any]] = field(default_factory=dict)


_registered: dict[str, Marker] = {}


def register(marker: Marker) -> None:
    """Let all exports from now on translate and resolve ``marker``; one of the same name is replaced."""
    _registered[marker.name] = marker


def translation_table() -> dict[Any, Callable[..., Any]]:
    """The translations of all markers."""
    return {overload: made for marker in _registered.values() for overload, made in marker.translations.items()}


def resolve_all(model: ir.Model) -> None:
    """Resolve the markers in ``model``, in the order in which they were registered."""
    for marker in _registered.values():
        marker.resolve(model)


_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)")


@torch.library.custom_op("quantmill::quant_stub", mutates_args=())
def _begin(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.custom_op("quantmill::dequant_stub", mutates_args=())
def _end(x: Tensor) -> Tensor:
    return x.clone()


for _marker in (_begin, _end):
    _marker.register_fake(torch.empty_like)
    _marker.register_autograd(lambda context, gradient: gradient)


class _Stub(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        """Return ``x`` as it is.

        Raises:
            StubError: ``x`` is no tensor of floats; integers and booleans are never quantized.
        """
        if not isinstance(x, Tensor) or not x.is_floating_point():
            what = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise StubError(
                f"{type(self).__name__} takes a tensor of floats, not {what}",
                hint="Call the stub on each tensor of floats; integers are never quantized and need none.",
            )
        return self._mark(x) if torch.compiler.is_compiling() else x

    def _mark(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class QuantStub(_Stub):
    """Begins a quantized region: what is computed from its result is quantized, up to a DeQuantStub or the output.

    One instance may be called any number of times. A module without stubs is quantized everywhere.
    """

    def _mark(self, x: Tensor) -> Tensor:
        marked: Tensor = _begin(x)
        return marked


class DeQuantStub(_Stub):
    """Ends a quantized region: what is computed from its result is computed in float."""

    def _mark(self, x: Tensor) -> Tensor:
        marked: Tensor = _end(x)
        return marked


class CalledStubs:
    """Sees which stubs of a module are called, and tells of those that are not: what they were to bound is not bounded.

    Args:
        module: is given hooks while this is entered.
    """

    def __init__(self, module: nn.Module) -> None:
        self._stubs = {path: part for path, part in module.named_modules() if isinstance(part, _Stub)}
        self._called: set[str] = set()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for path, stub in self._stubs.items():
            self._hooks.append(stub.register_forward_pre_hook(lambda *_, path=path: self._called.add(path)))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def check(self, model: ir.Model) -> None:
        """Refuse a module whose stubs all bound nothing; warn where some are never called.

        Args:
            model: as traced, with the markers that calls have left.

        Raises:
            StubError: there are stubs, and none is called in the traced forward, or for nothing that is returned.
        """
        if not self._stubs:
            return
        silent = [path for path in self._stubs if path not in self._called]
        if not has_markers(model):
            paths = ", ".join(map(repr, self._stubs))
            why = "never called in forward"
            if self._called:
                why = "called, but nothing that forward returns depends on them"
            raise StubError(
                f"the module has stubs that are {why}: {paths}",
                hint="Call them where the quantized region begins and ends, or remove them to quantize everything.",
                module=next(iter(self._stubs)),
            )
        if silent:
            kinds = ", ".join(f"the {type(self._stubs[path]).__name__} {path!r}" for path in silent)
            warnings.warn(f"never called in forward, and bounds nothing: {kinds}", stacklevel=2)


def _translation(name: str) -> Callable[..., Any]:
    schema = onnx.defs.OpSchema(
        name,
        DOMAIN,
        1,
        inputs=[onnx.defs.OpSchema.FormalParameter("x", "T")],
        outputs=[onnx.defs.OpSchema.FormalParameter("y", "T")],
        type_constraints=[("T", list(_FLOATS), "floats")],
    )
    operator = values.Op(values.Opset(DOMAIN, 1), name, schema)

    def translate(x: Any) -> Any:
        return operator(x)

    return translate


register(
    Marker(
        "stubs",
        resolve_regions,
        {
            torch.ops.quantmill.quant_stub.default: _translation(BEGIN),
            torch.ops.quantmill.dequant_stub.default: _translation(END),
        },
    )
)
