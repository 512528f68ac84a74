"""Batches: jobs that are submitted, watched and canceled together."""
