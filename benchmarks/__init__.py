"""Reproducible measurements; run as modules, e.g. ``python -m benchmarks.calibration``."""
