"""What the ONNX operators are: where linear nodes keep their channels, and how channels flow through the others."""
