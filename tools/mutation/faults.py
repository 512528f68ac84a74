"""Planted faults: one-line mutations of production code, kept as data in ``faults.json``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).with_name("faults.json")


@dataclass(frozen=True)
class Fault:
    """One line of a file, and the line that takes its place.

    Args:
        file: path in the checkout.
        line: the line as it is, with its indentation.
        occurrence: how many lines before it in the file are the same.
        changed: the line as it becomes.
        kind: what was done: comparison, constant, ...; for faults that have happened, of what kind they were.
        history: written by hand, of a kind that has happened; else drawn by ``generate``.
    """

    file: str
    line: str
    occurrence: int
    changed: str
    kind: str
    history: bool = False

    @property
    def name(self) -> str:
        """What results are kept under: stays when lines move."""
        return f"{self.file} {self.line.strip()} -> {self.changed.strip()} #{self.occurrence}"

    def number(self, text: str) -> int:
        """The line's number, from 1. Raises ValueError if the file does not have it any more."""
        numbers = [number for number, line in enumerate(text.splitlines(), 1) if line == self.line]
        if len(numbers) <= self.occurrence:
            raise ValueError(f"{self.file} has no such line any more: {self.line.strip()}")
        return numbers[self.occurrence]

    def planted(self, text: str) -> str:
        """The file's text with the fault."""
        lines = text.splitlines(keepends=True)
        lines[self.number(text) - 1] = self.changed + "\n"
        return "".join(lines)


def room_of(file: str) -> str:
    """``service/jobs`` or ``worker/quantizer/plan``: what the summary counts by."""
    parts = file.split("/")[:-1]
    return "/".join(parts[:3] if parts[:2] == ["worker", "quantizer"] else parts[:2])


def read_faults() -> list[Fault]:
    """All of ``faults.json``."""
    return [Fault(**entry) for entry in json.loads(FAULTS.read_text())]
