"""The sheet of small pictures of a dataset: which samples stand on it, and where."""

from __future__ import annotations

SHEET_SAMPLES, SHEET_COLUMNS = 16, 4
# Pixels: height and width that each picture is fitted into, and what is left free around it.
SHEET_SIDE, SHEET_GAP = 128, 4


def sheet_numbers(samples: int) -> list[int]:
    """The samples on the sheet of a dataset of so many, in the order in which they stand there, row by row."""
    shown = min(samples, SHEET_SAMPLES)
    return [k * samples // shown for k in range(shown)]


def sheet_size(shown: int) -> tuple[int, int]:
    """Width and height of a sheet of so many pictures, in pixels."""
    rows = -(-shown // SHEET_COLUMNS)
    return SHEET_COLUMNS * (SHEET_SIDE + SHEET_GAP) + SHEET_GAP, rows * (SHEET_SIDE + SHEET_GAP) + SHEET_GAP


def sheet_corner(place: int) -> tuple[int, int]:
    """Left and top of the picture at a place of the sheet, counted from 0, in pixels."""
    row, column = divmod(place, SHEET_COLUMNS)
    return SHEET_GAP + column * (SHEET_SIDE + SHEET_GAP), SHEET_GAP + row * (SHEET_SIDE + SHEET_GAP)
