"""Preparation passes, one idea per file: each says what it did, or why it did nothing."""
