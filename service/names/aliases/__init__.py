"""Aliases: names for a version, which can be moved to another version."""
