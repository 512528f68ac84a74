"""Migrations of the database: one tree for SQLite and PostgreSQL, run by ``quantmill migrate``."""
