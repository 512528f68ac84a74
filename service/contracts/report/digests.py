"""Digests of documents: the same for the same content, whatever wrote it."""

from __future__ import annotations

import hashlib
import json
from typing import Any

# What may differ between two runs that give the same bytes: the model is what these are measured with or computed by,
# never what it is made of. Threads are among them because the engine gives the same bytes for any number of them in
# all but the last bits of some sums; the model's own digest tells where it did not.
NOT_IN_DIGEST = frozenset(
    {
        "output_sha256",
        "output_data_sha256",
        "manifest_sha256",
        "threads",
        "timed_choice",
        "evaluation_sha256",
        "evaluation_preprocessing",
    }
)


def canonical_sha256(document: Any) -> str:
    """Lowercase hex sha256 of a document's canonical JSON: sorted keys, no blanks, UTF-8.

    Args:
        document: ready for JSON.

    Raises:
        ValueError: it holds NaN or infinity.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
