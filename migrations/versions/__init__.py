"""Revisions, named YYYYMMDD_slug."""
