"""A model's proto without its large weights, for tools that want a proto but no weights.

protobuf ends at 2 GB, and weights need not be copied to infer shapes or to convert operators. Large initializers stand
in the proto as references to external data that is not there; ``restore`` puts the tensors back.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

_KEPT_BYTES = 16 * 1024
_LOCATION = "skeleton/"


class Skeleton:
    """The proto of a model, which stays as it is, with references in place of large initializers.

    Args:
        model: stays as it is.
        subgraphs: large initializers of sub-graphs are references, too.

    Attributes:
        proto: the model without large weights.
    """

    def __init__(self, model: ir.Model, *, subgraphs: bool = True) -> None:
        self._tensors: list[ir.TensorProtocol] = []
        self._names: list[str] = []
        replaced: list[tuple[ir.Value, ir.TensorProtocol]] = []
        try:
            for graph in (model.graph, *(model.graph.subgraphs() if subgraphs else ())):
                for name, value in graph.initializers.items():
                    tensor = value.const_value
                    if tensor is not None and tensor.nbytes > _KEPT_BYTES:
                        replaced.append((value, tensor))
                        value.const_value = self._reference(tensor)
                        self._names.append(name)
            self.proto: onnx.ModelProto = ir.to_proto(model)
        finally:
            for value, tensor in replaced:
                value.const_value = tensor

    def _reference(self, tensor: ir.TensorProtocol) -> ir.ExternalTensor:
        self._tensors.append(tensor)
        return ir.ExternalTensor(
            f"{_LOCATION}{len(self._tensors) - 1}",
            0,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name=tensor.name or "",
        )

    @property
    def tensors(self) -> list[tuple[str, ir.TensorProtocol]]:
        """The tensors that the references stand for, with the names of their initializers, in order."""
        return list(zip(self._names, self._tensors, strict=True))

    @property
    def weights(self) -> dict[str, ir.TensorProtocol]:
        """The tensors that the references stand for, by initializer."""
        return dict(zip(self._names, self._tensors, strict=True))

    def restore(self, model: ir.Model) -> None:
        """Put the tensors in the place of their references in ``model``, which was made from the proto."""
        for graph in (model.graph, *model.graph.subgraphs()):
            for value in graph.initializers.values():
                tensor = value.const_value
                if isinstance(tensor, ir.ExternalTensor) and str(tensor.location).startswith(_LOCATION):
                    found = self._tensors[int(str(tensor.location).removeprefix(_LOCATION))]
                    found.name = value.name
                    value.const_value = found


def refer(stored: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Let a reference name the file that holds its bytes."""
    del stored.external_data[:]
    for key, value in {"location": location, "offset": str(offset), "length": str(length)}.items():
        stored.external_data.add(key=key, value=value)


def inline(stored: onnx.TensorProto, tensor: ir.TensorProtocol) -> None:
    """Put the bytes that a reference stands for in its place."""
    stored.ClearField("external_data")
    stored.ClearField("data_location")
    stored.raw_data = tensor.tobytes()


def copy_of(model: ir.Model) -> ir.Model:
    """A model of its own that shares the large weights, which nobody writes into."""
    skeleton = Skeleton(model)
    copy: ir.Model = ir.from_proto(skeleton.proto)
    skeleton.restore(copy)
    return copy


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, sub-graphs included."""
    graphs = (model.graph, *model.graph.subgraphs())
    tensors = (value.const_value for graph in graphs for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
