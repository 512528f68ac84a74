"""External data of ONNX models: confined to the model's folder, accounted for byte by byte, mapped instead of read."""

from __future__ import annotations

import hashlib
import math
import mmap
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.errors import ExternalDataError, ModelError, ResourceLimitError
from worker.quantizer.graph.mapped import SWEPT_BYTES, FilePlace, MappedPackedTensor, MappedTensor, know, sweep

# A tensor's bytes against its type and shape, told before anything is allocated for it.

MAX_ELEMENTS = 1 << 40
_MAX_RANK = 64
_SHOWN_NAME_CHARACTERS = 200
_T = onnx.TensorProto
# Where typed data lies when raw_data is not used, and how many entries one element takes there.
_TYPED_FIELDS: dict[int, tuple[str, int]] = {
    _T.FLOAT: ("float_data", 1),
    _T.COMPLEX64: ("float_data", 2),
    _T.DOUBLE: ("double_data", 1),
    _T.COMPLEX128: ("double_data", 2),
    _T.INT64: ("int64_data", 1),
    _T.UINT32: ("uint64_data", 1),
    _T.UINT64: ("uint64_data", 1),
    _T.STRING: ("string_data", 1),
}


def check_tensor(tensor: onnx.TensorProto) -> None:
    """Hold the bytes against type and shape; those of external data are somewhere else.

    Raises:
        ModelError: naming the tensor; a file of a few bytes must not make anyone allocate gigabytes.
    """
    expected = tensor_bytes(tensor.data_type, tensor.dims, tensor.name)
    if tensor.data_location == _T.EXTERNAL:
        return
    if tensor.HasField("raw_data"):
        got, unit = len(tensor.raw_data), "bytes"
        if tensor.data_type == _T.STRING:
            raise _bad_tensor(tensor.name, "strings cannot be raw bytes")
    else:
        name, per_element = _TYPED_FIELDS.get(tensor.data_type, ("int32_data", 1))
        got, unit = len(getattr(tensor, name)), f"entries in {name}"
        bits = ir.DataType(tensor.data_type).bitwidth if tensor.data_type != _T.STRING else 8
        count = math.prod(tensor.dims) * per_element
        expected = -(-count * bits // 8) if bits < 8 else count
    if got != expected:
        raise _bad_tensor(
            tensor.name, f"its shape {list(tensor.dims)} needs {expected} {unit}, the file contains {got}"
        )


def tensor_bytes(data_type: int, dims: Sequence[int], name: str) -> int:
    """Bytes that the elements take; 0 for strings, whose size is not fixed.

    Raises:
        ModelError: unknown type, negative or impossible dimensions.
    """
    try:
        dtype = ir.DataType(data_type)
    except ValueError:
        raise _bad_tensor(name, f"unknown data type {data_type}") from None
    if dtype == ir.DataType.UNDEFINED:
        raise _bad_tensor(name, "its data type is undefined")
    bad = len(dims) > _MAX_RANK or any(not 0 <= axis <= MAX_ELEMENTS for axis in dims)
    if bad or math.prod(dims) > MAX_ELEMENTS:
        raise _bad_tensor(name, f"impossible shape {list(dims[:_MAX_RANK])}")
    if dtype == ir.DataType.STRING:
        return 0
    bits: int = math.prod(dims) * dtype.bitwidth
    return (bits + 7) // 8


def _bad_tensor(name: str, why: str) -> ModelError:
    shown = name[:_SHOWN_NAME_CHARACTERS]
    return ModelError(
        f"tensor {shown!r} is damaged: {why}", hint="Export the model again, with its weights.", tensor=shown
    )


# What onnx.proto says an entry may be called. A reader that takes over others, as attributes of an object, can be made
# to do what it should not (CVE-2026-34445); a base path would lead out of the folder.
KNOWN_KEYS = frozenset({"location", "offset", "length", "checksum"})
_SHOWN_CHARACTERS = 100
_MOST_DIGITS = 20


def is_external(tensor: onnx.TensorProto) -> bool:
    """True if the tensor's bytes lie in another file."""
    return tensor.data_location == onnx.TensorProto.EXTERNAL


def attach(graph: ir.Graph, files: ExternalFiles) -> None:
    """Put mapped tensors in place of external ones, in ``graph`` and its sub-graphs."""
    for part in (graph, *graph.subgraphs()):
        for value in part.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = files.map(value.const_value)
    for node in graph.all_nodes():
        for name, attribute in list(node.attributes.items()):
            if attribute.is_ref():
                continue
            if attribute.type == ir.AttributeType.TENSOR and isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[name] = ir.AttrTensor(name, files.map(attribute.value))
            elif attribute.type == ir.AttributeType.TENSORS:
                mapped = [files.map(t) if isinstance(t, ir.ExternalTensor) else t for t in attribute.as_tensors()]
                node.attributes[name] = ir.AttrTensors(name, mapped)


class ExternalFiles:
    """The files beside a model. Opens each one once, through no link, and never outside the folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._maps: dict[str, mmap.mmap | bytes] = {}
        self._checksums: dict[str, str] = {}

    @property
    def locations(self) -> set[str]:
        """Locations opened so far."""
        return set(self._maps)

    def check(self, tensor: onnx.TensorProto) -> tuple[str, int, int]:
        """Location, offset and length of a tensor's bytes.

        Raises:
            ExternalDataError: naming the tensor and the path.
            ResourceLimitError: no address space is left to map the file.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        needed = tensor_bytes(tensor.data_type, tensor.dims, tensor.name)
        if len(entries) != len(tensor.external_data):
            raise _bad_external(tensor, location, "an entry is given twice")
        unknown = next((key for key in entries if key not in KNOWN_KEYS), None)
        if unknown is not None:
            raise _bad_external(tensor, location, f"it has an entry {unknown[:_SHOWN_CHARACTERS]!r}, which is not read")
        if tensor.data_type == onnx.TensorProto.STRING:
            raise _bad_external(tensor, location, "strings cannot be external")
        offset = _number(tensor, location, entries.get("offset") or "0")
        length = _number(tensor, location, entries.get("length") or str(needed))
        if length != needed:
            why = f"it declares {length} bytes at offset {offset}, its shape {list(tensor.dims)} needs {needed}"
            raise _bad_external(tensor, location, why)
        size = len(self._open(tensor, location))
        if offset + needed > size:
            why = f"the file has {size} bytes, the tensor ends at {offset + needed}: it is too short"
            raise _bad_external(tensor, location, why)
        checksum = entries.get("checksum")
        if checksum and checksum.lower() != self._checksum(location):
            raise _bad_external(tensor, location, "the file is not what the model's checksum says")
        return location, offset, needed

    def map(self, tensor: ir.ExternalTensor) -> ir.TensorProtocol:
        """The tensor with its bytes mapped from the file; ``check`` has passed it before."""
        if tensor.dtype.bitwidth < 8:
            return self._packed(tensor)
        dtype = tensor.dtype.numpy()
        shape = tensor.shape.numpy()
        offset = tensor.offset or 0
        count = math.prod(shape)
        # An empty tensor may lie in an empty file, of which nothing can be viewed.
        flat = np.frombuffer(self._maps[str(tensor.location)], dtype, count, offset) if count else np.empty(0, dtype)
        values = flat.reshape(shape)
        if offset % dtype.itemsize:
            copied = values.copy()  # not every consumer takes unaligned memory
            return ir.Tensor(
                copied, tensor.dtype, shape=ir.Shape(shape), name=tensor.name, doc_string=tensor.doc_string
            )
        return MappedTensor(values, tensor, FilePlace(self._folder, str(tensor.location), offset))

    def _packed(self, tensor: ir.ExternalTensor) -> MappedPackedTensor:
        shape, offset = ir.Shape(tensor.shape.numpy()), tensor.offset or 0
        count = -(-math.prod(shape.numpy()) * tensor.dtype.bitwidth // 8)
        held = (
            np.frombuffer(self._maps[str(tensor.location)], np.uint8, count, offset) if count else np.empty(0, np.uint8)
        )
        return MappedPackedTensor(held, tensor, FilePlace(self._folder, str(tensor.location), offset))

    def _checksum(self, location: str) -> str:
        """SHA-1 of an opened file, as onnx.proto has it: against damage; it proves nothing of who made the file."""
        if location not in self._checksums:
            self._checksums[location] = hashlib.sha1(self._maps[location], usedforsecurity=False).hexdigest()
        return self._checksums[location]

    def _open(self, tensor: onnx.TensorProto, location: str) -> mmap.mmap | bytes:
        if location in self._maps:
            return self._maps[location]
        parts = PurePosixPath(location).parts
        # One spelling for each file, that of the manifest; exporters that write "./" before it mean no other.
        plain = "/".join(parts) == location.removeprefix("./") and ".." not in parts and not location.startswith("/")
        if not parts or not plain or "\\" in location or "\0" in location:
            raise _bad_external(tensor, location, "the path is not a plain path within the model's folder")
        descriptor = _open_beneath(self._folder, parts)
        if isinstance(descriptor, OSError):
            missing = isinstance(descriptor, FileNotFoundError)
            why = "the file is missing" if missing else f"it cannot be opened: {descriptor.strerror}"
            raise _bad_external(tensor, location, why)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise _bad_external(tensor, location, "it is not a regular file")
            # An empty file cannot be mapped.
            if not status.st_size:
                self._maps[location] = b""
                return b""
            view = self._maps[location] = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
            (sweep if status.st_size >= SWEPT_BYTES else know)(self._folder / location, view)
        except OSError as error:
            raise ResourceLimitError(
                f"external data {location!r} with {status.st_size} bytes cannot be mapped: {error.strerror}",
                hint="Use a smaller model, or raise the memory limit of jobs.",
                resource="memory",
            ) from None
        finally:
            os.close(descriptor)
        return self._maps[location]


def _number(tensor: onnx.TensorProto, location: str, text: str) -> int:
    """A number as every reader of it takes it: digits alone, in 64 bits."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise _bad_external(tensor, location, f"its offset or length is not a number: {text[:_SHOWN_CHARACTERS]!r}")
    return int(text)


def _open_beneath(folder: Path, parts: tuple[str, ...]) -> int | OSError:
    """Open a file for reading without following a link in any of ``parts``.

    Returns:
        Its descriptor; or why there is none: missing, a link, or not readable. It is not raised, so that nobody takes
        what a model says for a fault of the disk.
    """
    try:
        return _descend(folder, parts)
    except OSError as error:
        return error


def _descend(folder: Path, parts: tuple[str, ...]) -> int:
    current = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts[:-1]:
            following = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = following
        # Not blocking: a named pipe must not hold up the process.
        return os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=current)
    finally:
        os.close(current)


def _bad_external(tensor: onnx.TensorProto, location: str, why: str) -> ExternalDataError:
    return ExternalDataError(
        f"external data {location!r} of tensor {tensor.name!r}: {why}",
        hint="Keep the external data files with the model, under the names that the model uses.",
        tensor=tensor.name,
        path=location,
    )
