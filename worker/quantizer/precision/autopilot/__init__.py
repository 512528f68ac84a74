"""The search for the best recipe."""
