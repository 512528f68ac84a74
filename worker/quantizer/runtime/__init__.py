"""onnxruntime: sessions, what it accepts, and its faults in words."""
