"""Idempotency keys: the same request twice is done once, and answered twice."""
