"""Quantmill's doors for Python: what users import. Alone it loads neither torch, onnxruntime nor the server.

``quantmill.torch``: modules of PyTorch in, quantized ONNX out. ``quantmill.quark``: the names of AMD Quark for ONNX.
"""
