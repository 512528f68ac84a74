"""Rounding and weights by gradient descent."""
