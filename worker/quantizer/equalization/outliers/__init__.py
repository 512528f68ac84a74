"""Channels that alone set the range of a tensor: split, scaled down, or given more bits."""
