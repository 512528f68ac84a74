"""What a dataset's file is, told by its content."""

from __future__ import annotations

from pathlib import Path

from service.contracts.dataset import FileFormat
from service.contracts.errors import DatasetFormatError
from worker.quantizer.data.media.tar import BLOCK_BYTES, GZIP_MAGIC, gzip_head, looks_like_tar
from worker.quantizer.data.media.zipped import holds_media
from worker.quantizer.data.tensors import looks_like_safetensors

_HINT = (
    "Upload an .npz file (numpy.savez) or a .safetensors file with one array per model input, or a .tar, .tar.gz or "
    ".zip of pictures or sounds."
)


def detect_format(path: Path) -> FileFormat:
    """Tell the format by the first bytes, and a zip archive's by what it lists.

    Raises:
        DatasetFormatError: missing, empty, or no known format.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(BLOCK_BYTES)
    except OSError as error:
        raise DatasetFormatError(f"the dataset cannot be read: {error.strerror}", hint=_HINT) from None
    if not head:
        raise DatasetFormatError("the dataset file is empty", hint=_HINT)
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip" if holds_media(path) else "npz"
    if looks_like_safetensors(head, size):
        return "safetensors"
    if looks_like_tar(head):
        return "tar"
    if head[:2] == GZIP_MAGIC:
        if looks_like_tar(gzip_head(path)):
            return "tar.gz"
        raise DatasetFormatError("the file is packed by gzip, and no tar archive is in it", hint=_HINT)
    if head[:6] == b"\x93NUMPY":
        raise DatasetFormatError("the file is a single .npy array, not an .npz archive", hint=_HINT)
    if head[:1] == b"\x80":
        raise DatasetFormatError("the file is a Python pickle, which is never loaded", hint=_HINT)
    raise DatasetFormatError(
        "the file is neither an .npz archive, nor a .safetensors file, nor a .tar, .tar.gz or .zip, or it is cut short",
        hint=_HINT,
    )
