"""Models: a main ONNX file with its external data."""
