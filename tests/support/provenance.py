"""Two models that were made from other files, or by another config, differ in what they say of that."""

from __future__ import annotations

import onnx

from service.contracts.provenance import PREFIX


def without_provenance(model: bytes) -> bytes:
    """The model without what it says of its making."""
    proto = onnx.load_from_string(model)
    kept = {entry.key: entry.value for entry in proto.metadata_props if not entry.key.startswith(PREFIX)}
    onnx.helper.set_model_props(proto, kept)
    return bytes(proto.SerializeToString(deterministic=True))
