"""Datasets: arrays for calibration and evaluation."""
