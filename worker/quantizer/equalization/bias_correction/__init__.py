"""Bias correction: every output channel gets back the mean that quantization took from it."""
