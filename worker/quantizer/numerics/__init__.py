"""How numbers are represented: integer grids, small floats, block formats."""
