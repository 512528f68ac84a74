"""Targets: the runtimes and the hardware that models are quantized for."""
