"""Upkeep: retention, garbage collection, verification, and backups."""
