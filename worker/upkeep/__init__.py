"""Upkeep: what is kept for how long, what is collected when, whether it is still whole, and copies of it elsewhere."""
