"""Aliases: words that stand for a version of a name, moved from one to the next."""
