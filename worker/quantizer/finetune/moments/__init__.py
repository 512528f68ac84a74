"""Rounding and weights from second moments of a layer's inputs."""
