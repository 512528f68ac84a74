"""Quarantine: models that crash their runner are refused until they are released."""
