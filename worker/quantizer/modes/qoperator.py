"""QOperator format: Q/DQ pairs and the operators between them become QLinear operators.

onnxruntime fuses them itself whenever it loads a Q/DQ model; here it does so once and writes down the outcome. So
the operators, those of its own domain com.microsoft among them, are the very ones that it would run.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import onnx
import onnxruntime as ort

from worker.quantizer.graph.serialized import serialized
from worker.quantizer.runtime.session import refusals


def to_qoperator(model: bytes, *, threads: int) -> tuple[bytes, int]:
    """The model with QLinear operators, and how many operators between Q/DQ pairs could not be replaced.

    Args:
        model: serialized model with Q/DQ pairs, 8 bits.
        threads: of the session that converts.

    Raises:
        UnsupportedModelError: onnxruntime refuses the model.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "qoperator.onnx"
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4
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
    left = sum(node.op_type == "QuantizeLinear" for node in proto.graph.node)
    return serialized(proto), left
