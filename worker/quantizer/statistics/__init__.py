"""Statistics are declared, then collected together in one float pass; observers stream."""
