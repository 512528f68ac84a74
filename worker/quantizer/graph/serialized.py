"""The bytes of a model, the same for the same model; and its proto without large weights."""

from __future__ import annotations

import hashlib
import mmap
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError, Message

from service.contracts.errors import UnsupportedModelError
from worker.quantizer.graph import sizes
from worker.quantizer.graph.mapped import SpillFolder, forget, raw_bytes

# A model's proto without its large weights, for tools that want a proto but no weights.
#
# protobuf ends at 2 GB, and weights need not be copied to infer shapes or to convert operators. Large initializers
# stand in the proto as references to external data that is not there; ``restore`` puts the tensors back.

_KEPT_BYTES = 16 * 1024
_LOCATION = "skeleton/"  # keys of kept work are digests of protos with it


class WeightlessProto:
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
    weightless = WeightlessProto(model)
    copy: ir.Model = ir.from_proto(weightless.proto)
    weightless.restore(copy)
    return copy


def weight_bytes(model: ir.Model) -> int:
    """Bytes of all initializers, sub-graphs included."""
    graphs = (model.graph, *model.graph.subgraphs())
    tensors = (value.const_value for graph in graphs for value in graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


# Of weights, in a file together with the graph.
MAX_WEIGHT_BYTES = 2_000_000_000
_PIECE_BYTES = 1 << 24


def to_bytes(model: ir.Model) -> bytes:
    """The serialized model, whole, the same bytes for the same model.

    Raises:
        UnsupportedModelError: it is larger than a file can be.
    """
    if weight_bytes(model) > sizes.FILE_BYTES:
        raise _too_large()
    return serialized(ir.to_proto(model))


def save_whole(model: ir.Model, path: Path) -> list[Path]:
    """Write a model as one file, or above 2 GB with its weights in a file of this name and ``.data`` beside it.

    No link is followed that lies in the place of either. Gives the files written, the ONNX file first.
    """
    data = path.with_name(f"{path.name}.data") if weight_bytes(model) > MAX_WEIGHT_BYTES else None
    files = [path] if data is None else [path, data]
    for file in files:
        if file.is_symlink():
            file.unlink()
    ir.save(model, path, external_data=None if data is None else data.name)
    return files


def save_weights(model: Path, output: Path) -> None:
    """Write the initializers of a model file, those of its sub-graphs too, as safetensors under their own names.

    Values of 4 bits are packed, two in a byte, as ONNX has them.

    Args:
        model: the .onnx file; external data lies in its folder.
        output: whole afterwards, or as it was.

    Raises:
        UnsupportedModelError: it has none.
    """
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".weights-") as folder:
        ir.save_safetensors(ir.load(model), Path(folder) / "model.onnx", size_threshold_bytes=0)
        made = Path(folder) / "model.safetensors"
        if not made.exists():
            raise UnsupportedModelError("the model has no weights", hint="There is nothing to write as safetensors.")
        made.replace(output)


@dataclass(frozen=True)
class ModelContent:
    """A finished model: its bytes, or the files that hold it where it is large."""

    runnable: bytes | ir.Model  # what the runtime takes
    size_bytes: int  # of all of it
    sha256: str  # of the ONNX file
    data_sha256: str | None = None  # of the file of external data that belongs to it; None: there is none
    path: Path | None = None  # of the ONNX file; None: it is held in memory
    data: Path | None = None  # of that file
    spill: SpillFolder | None = None  # that both lie on, until they are moved

    @staticmethod
    def held(data: bytes) -> ModelContent:
        """One in memory."""
        return ModelContent(data, len(data), hashlib.sha256(data).hexdigest())

    @staticmethod
    def filed(model: ir.Model, spill: SpillFolder, data_name: str) -> ModelContent:
        """Write a model whose large weights lie in files, one weight after the other, as ``to_bytes`` has it; above
        2 GB its weights go into a second file.

        Args:
            model: stays as it is, and is what the runtime is given.
            spill: takes both files.
            data_name: of the second file.
        """
        folder = spill.subfolder()
        path, data = folder / "model.onnx", folder / data_name
        weightless = WeightlessProto(model, subgraphs=False)
        left_out_bytes = sum(one.nbytes for one in weightless.weights.values())
        if len(serialized(weightless.proto)) + left_out_bytes <= sizes.FILE_BYTES:
            with path.open("wb") as file:
                size, sha256 = _write_whole(weightless, file)
            return ModelContent(model, size, sha256, path=path, spill=spill)
        with data.open("wb") as file:
            data_size, data_sha256 = _write_data(weightless, file, data_name)
        graph = serialized(weightless.proto)
        path.write_bytes(graph)
        sha256 = hashlib.sha256(graph).hexdigest()
        return ModelContent(model, len(graph) + data_size, sha256, data_sha256, path, data, spill)

    def read(self) -> bytes:
        """The bytes of the ONNX file."""
        if isinstance(self.runnable, bytes):
            return self.runnable
        assert self.path is not None  # noqa: S101 - it has been written
        return self.path.read_bytes()

    def move(self, path: Path) -> None:
        """Let the ONNX file lie at ``path``, and the file of its data, if there is one, beside it under its own name.

        Raises:
            OSError: the disk refused.
        """
        if self.path is None:
            path.write_bytes(self.read())
            return
        shutil.move(self.path, path)
        if self.data is not None:
            shutil.move(self.data, path.with_name(self.data.name))


class _SizeCounter:
    """Writes to a file, and keeps count and digest of what was written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, hashlib.sha256()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.size += len(data)

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()

    def tensor(self, tensor: ir.TensorProtocol) -> None:
        """The bytes of a tensor, piece by piece; those of a mapped one are not held."""
        raw = raw_bytes(tensor)
        for first in range(0, raw.size, _PIECE_BYTES):
            self.write(raw[first : first + _PIECE_BYTES].data)
        forget(tensor)


def _write_whole(weightless: WeightlessProto, file: IO[bytes]) -> tuple[int, str]:
    """The bytes of the model, in protobuf's wire form: a message is its fields in the order of their numbers, and one
    within another has its length before it. Size and sha256.
    """
    out, proto, weights = _SizeCounter(file), weightless.proto, weightless.weights
    graph = proto.graph
    before, after = _parts(proto, "graph")
    head, tail = _parts(graph, "initializer")
    pieces = [_stored(stored, weights.get(stored.name)) for stored in graph.initializer]
    lengths = [sum(map(len, (one, other))) + (0 if held is None else held.nbytes) for one, held, other in pieces]
    framed = sum(len(_varint(length)) + 1 + length for length in lengths)
    out.write(before + _tag(proto, "graph") + _varint(len(head) + framed + len(tail)) + head)
    for (one, held, other), length in zip(pieces, lengths, strict=True):
        out.write(_tag(graph, "initializer") + _varint(length) + one)
        if held is not None:
            out.tensor(held)
        out.write(other)
    out.write(tail + after)
    return out.size, out.sha256


def _stored(stored: onnx.TensorProto, held: ir.TensorProtocol | None) -> tuple[bytes, ir.TensorProtocol | None, bytes]:
    """An initializer: what comes before the bytes that are kept elsewhere, these, and what comes after."""
    if held is None:
        return stored.SerializeToString(deterministic=True), None, b""
    whole = onnx.TensorProto()
    whole.CopyFrom(stored)
    whole.ClearField("external_data")
    whole.ClearField("data_location")
    before, after = _parts(whole, "raw_data")
    return before + _tag(whole, "raw_data") + _varint(held.nbytes), held, after


def _parts(message: Message, field: str) -> tuple[bytes, bytes]:
    """What a message holds in fields of smaller numbers than ``field``, and of larger ones, serialized."""
    found = []
    for low in (True, False):
        part = type(message)()
        for known, value in message.ListFields():
            if known.number != _number(message, field) and (known.number < _number(message, field)) is low:
                if known.is_repeated:
                    getattr(part, known.name).extend(value)
                elif known.message_type is not None:
                    getattr(part, known.name).CopyFrom(value)
                else:
                    setattr(part, known.name, value)
        found.append(bytes(part.SerializeToString(deterministic=True)))
    return found[0], found[1]


def _number(message: Message, field: str) -> int:
    return int(message.DESCRIPTOR.fields_by_name[field].number)


def _tag(message: Message, field: str) -> bytes:
    """What stands before a field of known length."""
    return _varint(_number(message, field) << 3 | 2)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _write_data(weightless: WeightlessProto, file: IO[bytes], name: str) -> tuple[int, str]:
    """The bytes of the weights, each on a page of its own, and the references to them; size and sha256."""
    out, weights = _SizeCounter(file), weightless.weights
    for stored in weightless.proto.graph.initializer:
        held = weights.get(stored.name)
        if held is not None:
            out.write(bytes(-out.size % mmap.PAGESIZE))
            refer(stored, name, out.size, held.nbytes)
            out.tensor(held)
    return out.size, out.sha256


def serialized(proto: onnx.ModelProto) -> bytes:
    """The same bytes for the same model.

    Raises:
        UnsupportedModelError: the model is larger than a protobuf message can be.
        MemoryError: there is not enough memory.
    """
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except EncodeError as error:  # says no more than that it failed
        if sum(len(tensor.raw_data) for tensor in proto.graph.initializer) < sizes.FILE_BYTES:
            raise MemoryError("not enough memory to serialize the model") from error
        raise _too_large() from error


def model_digest(model: ir.Model) -> bytes:
    """A sha256 of the graph and all weights; the model may be of any size, and is not copied.

    Raises:
        UnsupportedModelError: without its large weights the model is larger than a protobuf message can be.
    """
    weightless = WeightlessProto(model)
    digest = hashlib.sha256(serialized(weightless.proto))
    for name, tensor in weightless.tensors:
        data = tensor.tobytes()
        digest.update(f"\n{name} {tensor.dtype} {len(data)}\n".encode())
        digest.update(data)
    return digest.digest()


def _too_large() -> UnsupportedModelError:
    return UnsupportedModelError(
        "with its weights the model is larger than 2 GB, the limit of a single ONNX file",
        hint="A float model may be larger, with external data; the quantized one has to fit into one file. "
        "Quantize more of its weights, or to fewer bits.",
    )
