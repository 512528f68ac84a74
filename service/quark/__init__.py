"""AMD Quark's ONNX configs, translated to Quantmill configs."""

from __future__ import annotations

from service.quark.document import (
    Note,
    Translation,
    missing_envelope,
    read_config,
    translate,
    translate_document,
    use_quark_words,
)

__all__ = [
    "Note",
    "Translation",
    "missing_envelope",
    "read_config",
    "translate",
    "translate_document",
    "use_quark_words",
]
