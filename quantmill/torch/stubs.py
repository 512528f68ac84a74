"""QuantStub and DeQuantStub: where in a module's forward pass quantized regions begin and end.

In PyTorch both are identities. While a module is exported each call leaves a marker, a node of the domain
``quantmill``; ``quantmill.torch.regions`` turns the markers into regions and takes them out of the graph again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx.defs
import torch
from onnxscript import values
from torch import Tensor, nn

from quantmill.torch import markers
from quantmill.torch.regions import BEGIN, DOMAIN, END, StubError, resolve_regions

_FLOATS = ("tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)")


@torch.library.custom_op("quantmill::quant_stub", mutates_args=())
def _begin(x: Tensor) -> Tensor:
    return x.clone()


@torch.library.custom_op("quantmill::dequant_stub", mutates_args=())
def _end(x: Tensor) -> Tensor:
    return x.clone()


def _like(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _gradient(context: Any, gradient: Tensor) -> Tensor:
    return gradient


for _marker in (_begin, _end):
    _marker.register_fake(_like)
    _marker.register_autograd(_gradient)


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


def stub_paths(module: nn.Module) -> tuple[str, ...]:
    """Paths of all stubs in ``module``."""
    return tuple(path for path, part in module.named_modules() if isinstance(part, _Stub))


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


markers.register(
    markers.Marker(
        "stubs",
        resolve_regions,
        {
            torch.ops.quantmill.quant_stub.default: _translation(BEGIN),
            torch.ops.quantmill.dequant_stub.default: _translation(END),
        },
    )
)
