"""Findings: what is wrong with the data or the model, said before any figure."""
