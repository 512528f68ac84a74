"""Sensitivity of layers, mixed precision, and the search for the best recipe."""
