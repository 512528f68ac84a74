"""The names of AMD Quark for ONNX, on this engine."""
