"""Stored files in the database: which rows refer to them, and which of them are damaged."""
