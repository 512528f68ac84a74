"""Whether onnxruntime computes what a quantized model says, and what is done where it does not."""
