"""Uploads: files sent in one request or in parts."""
