"""Uploads: bytes on their way in."""
