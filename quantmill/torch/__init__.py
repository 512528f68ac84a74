"""PyTorch modules in, quantized ONNX models out."""
