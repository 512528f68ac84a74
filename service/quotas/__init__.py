"""Quotas: limits per tenant, enforced also for concurrent requests."""
