"""onnx-ir helpers: values, rewriting, copies, bytes, and facts that a graph itself does not hold."""
