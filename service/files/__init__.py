"""Stored files as the database knows them: which rows name them, and which of them are damaged."""
