"""The bytes of a model: the same for the same model."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

import onnx
import onnx_ir as ir
from google.protobuf.message import EncodeError

from service.contracts.errors import UnsupportedModelError
from worker.quantizer.graph.skeleton import Skeleton, weight_bytes

# What protobuf can hold.
MAX_FILE_BYTES = (1 << 31) - 1
# Of weights, in a file together with the graph.
MAX_WEIGHT_BYTES = 2_000_000_000


def to_bytes(model: ir.Model) -> bytes:
    """The serialized model, whole, the same bytes for the same model.

    Raises:
        UnsupportedModelError: it is larger than a file can be.
    """
    if weight_bytes(model) > MAX_FILE_BYTES:
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


def serialized(proto: onnx.ModelProto) -> bytes:
    """The same bytes for the same model.

    Raises:
        UnsupportedModelError: the model is larger than a protobuf message can be.
        MemoryError: there is not enough memory.
    """
    try:
        return bytes(proto.SerializeToString(deterministic=True))
    except EncodeError as error:  # says no more than that it failed
        if sum(len(tensor.raw_data) for tensor in proto.graph.initializer) < MAX_FILE_BYTES:
            raise MemoryError("not enough memory to serialize the model") from error
        raise _too_large() from error


def model_digest(model: ir.Model) -> bytes:
    """A sha256 of the graph and all weights; the model may be of any size, and is not copied.

    Raises:
        UnsupportedModelError: without its large weights the model is larger than a protobuf message can be.
    """
    skeleton = Skeleton(model)
    digest = hashlib.sha256(serialized(skeleton.proto))
    for name, tensor in skeleton.tensors:
        data = tensor.tobytes()
        digest.update(f"\n{name} {tensor.dtype} {len(data)}\n".encode())
        digest.update(data)
    return digest.digest()


def _too_large() -> UnsupportedModelError:
    return UnsupportedModelError(
        "with its weights the model is larger than 2 GB, which a single ONNX file cannot hold",
        hint="A float model may be larger, with external data; what is made of it has to fit into one file. "
        "Quantize more of its weights, or to fewer bits.",
    )
