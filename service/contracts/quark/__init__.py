"""AMD Quark's ONNX configs, read as ours."""

from __future__ import annotations

from service.contracts.quark.document import Note, Translation, from_document, translate, translate_document

__all__ = ["Note", "Translation", "from_document", "translate", "translate_document"]
