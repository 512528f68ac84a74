"""Artifacts: files that jobs produced."""
