"""onnx-ir helpers and preparation passes."""
