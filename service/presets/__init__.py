"""Presets: named recipes."""
