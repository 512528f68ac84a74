"""Tables and pictures for people: cells of CSV files, sheets of small pictures."""

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


# What a spreadsheet takes for the beginning of a formula, in either width, and what it passes over before one.
_FORMULA = tuple("=+-@\t\r\n|%＝＋－＠")


def cell(value: str | float | int | None) -> str | float | int:
    """A value as it is written: a text that a spreadsheet would run as a formula begins with an apostrophe.

    Control characters other than line breaks, and lone surrogates, are replaced; None is an empty cell.
    """
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    clean = "".join(letter if _kept(letter) else "\N{REPLACEMENT CHARACTER}" for letter in value)
    return f"'{clean}" if clean.lstrip(" ").startswith(_FORMULA) else clean


def _kept(letter: str) -> bool:
    code = ord(letter)
    return letter in "\t\r\n" or not (code < 0x20 or 0x7F <= code < 0xA0 or 0xD800 <= code < 0xE000)
