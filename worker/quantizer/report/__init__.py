"""The report: its figures, its words, its drawings."""
