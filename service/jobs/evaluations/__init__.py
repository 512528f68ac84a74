"""Evaluations: jobs that measure a model, without quantizing anything."""
