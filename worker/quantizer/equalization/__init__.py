"""Changes of the float network that make it easier to quantize, and biases that take back what quantization costs.

Cross-layer equalization, SmoothQuant and AWQ move scale between layers; outlier channels are scaled, split or given
more bits; bias correction gives every output channel back the mean that quantization took from it.
"""
