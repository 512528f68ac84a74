"""Where in a dataset's record a fault lies, by JSON pointers (RFC 6901), and the errors that tell it.

One array: ``/arrays/<name>``, a key of ``DatasetSummary.arrays``; of one stored sample by sample, a damaged sample:
``/arrays/<name>~1<number>``. One file of an archive of pictures or sounds: ``/files/<path>``, its path within the
archive. The label array: ``/labels``, whatever its name in the file. The preprocessing spec: ``/preprocessing/...``. A
fault of the file as a whole has no pointer here: whoever took the file in knows which of its fields gave the bytes.
"""

from __future__ import annotations

from typing import Any, TypeVar

from service.contracts.errors import DatasetError
from service.contracts.pointers import below

LABELS_POINTER = "/labels"

Fault = TypeVar("Fault", bound=DatasetError)


def array_pointer(name: str) -> str:
    """Pointer of a stored array; an archive's member ``x.npy`` is array ``x``."""
    return below("/arrays", name.removesuffix(".npy"))


def array_fault(kind: type[Fault], name: str, why: str, **details: Any) -> Fault:
    """An error of ``kind`` about a stored array; ``why`` follows its name, ``details`` are those of any error."""
    return kind(f"array {name!r} {why}", pointer=array_pointer(name), array=name, **details)


def file_pointer(path: str) -> str:
    """Pointer of a file in an archive of pictures or sounds."""
    return below("/files", path)
