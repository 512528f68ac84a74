"""Batches: jobs that are asked for, watched and canceled as one."""
