"""Choosing integers and biases so that the outputs of the quantized layers come close to those of the float ones."""
