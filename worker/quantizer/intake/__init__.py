"""Reading a model that a stranger uploaded, and judging whether it can be quantized."""
