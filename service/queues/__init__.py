"""Queues: queued jobs, running jobs, and workers."""
