"""Networks and configs made at random from a grammar, and what is asked of each quantized one."""
