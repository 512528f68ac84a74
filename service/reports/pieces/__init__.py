"""Pieces of the page: what its template takes ready made."""
