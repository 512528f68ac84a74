"""Prometheus metrics of every process of the service: declarations, what is looked up at a scrape, and serving."""
