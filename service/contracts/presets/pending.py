"""Presets of AMD Quark that cannot be offered: asking for one tells why, and what to do instead."""

from __future__ import annotations

_WEIGHTS_ONLY = (
    "Quark defines it under no name that its tools take; config {mode: weights_only, algorithms: [{method: adaround}]} "
    "is that recipe"
)

# Lower-case name in Quark -> why it is not offered.
PENDING_PRESETS: dict[str, str] = {
    "xint8_weightsonly_adaround": _WEIGHTS_ONLY,
}
