"""Inspections: what a target would make of a model, told without data."""
