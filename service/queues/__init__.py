"""Queues: what waits in them, what runs, and who takes it."""
