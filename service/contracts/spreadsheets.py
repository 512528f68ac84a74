"""Cells of CSV files, which people open in spreadsheets: a name from a model must not become a formula there."""

from __future__ import annotations

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
