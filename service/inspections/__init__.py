"""Inspections: what a target would do with a model, determined without data."""
