"""Deleting models and datasets: what nobody needs goes, its number and what jobs made of it stay."""
