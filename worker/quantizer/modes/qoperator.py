"""QOperator format: Q/DQ pairs and the operators between them become QLinear operators.

onnxruntime fuses them itself whenever it loads a Q/DQ model; here it does so once and writes down the outcome. So
the operators, those of its own domain com.microsoft among them, are the very ones that it would run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import onnx
import onnxruntime as ort

from worker.quantizer.graph.serialized import serialized
from worker.quantizer.runtime.session import refusals, session_options


def to_qoperator(model: bytes, *, threads: int, metadata: Mapping[str, str] | None = None) -> tuple[bytes, int]:
    """The model with QLinear operators, and how many operators between Q/DQ pairs could not be replaced.

    Args:
        model: serialized model with Q/DQ pairs, 8 bits.
        threads: of the session that converts.
        metadata: what the model has to say of itself; onnxruntime does not hand it on.

    Raises:
        UnsupportedModelError: onnxruntime refuses the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "qoperator.onnx"
        options = session_options(threads, optimized=True)
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        # int8 activations as they are; by default x86 leaves nodes that have them in float.
        options.add_session_config_entry("session.qdqisint8allowed", "1")
        with refusals("quantized model"):
            ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        proto = onnx.load(path)
    used = {node.domain for node in proto.graph.node}
    for entry in [entry for entry in proto.opset_import if entry.domain not in used]:
        proto.opset_import.remove(entry)
    onnx.helper.set_model_props(
        proto, {entry.key: entry.value for entry in proto.metadata_props} | dict(metadata or {})
    )
    left = sum(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    return serialized(proto), left
