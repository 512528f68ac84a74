"""Keys: who may ask, in whose name, and what."""
