"""Idempotency keys: a repeated request is executed once and gets the same response."""
