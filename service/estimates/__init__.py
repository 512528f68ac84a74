"""Estimates of time, memory and size of a job before it runs, from the graph, the config and earlier jobs."""
