"""Quantization-aware training: the whole quantized network is trained by gradients through its rounding."""
