"""Searches for precisions of layers and for recipes: candidates are tried, measured, and one is chosen."""
