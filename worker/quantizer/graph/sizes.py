"""Where large begins: models that are quantized weight by weight, arrays that are put into files, files that are two.

Tests set ``QUANTMILL_LARGE_BYTES=WEIGHTS:TENSOR:FILE`` before a process starts, so that it treats a small model so;
like ``service.failpoints`` it is for nothing else.
"""

from __future__ import annotations

import os

VARIABLE = "QUANTMILL_LARGE_BYTES"
# Of all weights of a model: from here on they are handed to the runtime as they lie, and not held twice.
WEIGHT_BYTES = 1 << 28
# Of one tensor: from here on it is worth while to keep it in a file, and to give its memory back.
TENSOR_BYTES = 1 << 24
# Of a quantized model: up to here its weights are also packed for kernels, which copies them, when it is measured.
PACKED_BYTES = 1 << 30
# Of a file: what protobuf can hold; a larger model keeps its weights in a second one.
FILE_BYTES = (1 << 31) - 1

if VARIABLE in os.environ:
    WEIGHT_BYTES, TENSOR_BYTES, FILE_BYTES = (int(word) for word in os.environ[VARIABLE].split(":"))
