"""Quotas: what a tenant may use, counted so that nobody gets more by asking at once."""
