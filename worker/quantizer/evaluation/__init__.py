"""What quantization cost: metrics, distance from the float model, layer by layer, and latency."""
