"""Where in a dataset's record a fault lies: JSON pointers (RFC 6901) for the errors of this package.

One array: ``/arrays/<name>``, a key of ``DatasetSummary.arrays``. One file of an archive of pictures or sounds:
``/files/<path>``, its path within the archive. The label array: ``/labels``, whatever its name in the file. The
preprocessing spec: ``/preprocessing/...``. A fault of the file as a whole has no pointer here: whoever took the file
in knows which of its fields gave the bytes.
"""

from __future__ import annotations

from service.contracts.pointers import below

LABELS_POINTER = "/labels"


def array_pointer(name: str) -> str:
    """Pointer of a stored array; an archive's member ``x.npy`` is array ``x``."""
    return below("/arrays", name.removesuffix(".npy"))


def file_pointer(path: str) -> str:
    """Pointer of a file in an archive of pictures or sounds."""
    return below("/files", path)
