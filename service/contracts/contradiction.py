"""Settings that rule each other out."""

from __future__ import annotations

from typing import NamedTuple


class Contradiction(NamedTuple):
    """Two settings of a config that cannot both hold.

    Attributes:
        pointer: JSON pointer within the config of the one to change.
        message: what contradicts what, and what to do.
    """

    pointer: str
    message: str
