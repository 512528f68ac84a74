"""The rules of the targets, by what they change: operators, roles, specs, grids."""
