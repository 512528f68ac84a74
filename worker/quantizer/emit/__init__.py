"""(graph, plan) -> ONNX: quantizers are written down once, at the end."""

from worker.quantizer.emit.writer import BLOCKS_OPSET, PRODUCER, Emitted, emit, restore_weights, write_moved

__all__ = ["BLOCKS_OPSET", "PRODUCER", "Emitted", "emit", "restore_weights", "write_moved"]
