"""A precision for every layer."""
