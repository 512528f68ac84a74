"""Presets of AMD Quark that cannot be offered: asking for one tells why, and what to do instead."""

from __future__ import annotations

_WEIGHTS_ONLY = "weights alone are rounded to the nearest: mode weights_only runs no algorithms"

# Lower-case name in Quark -> why it is not offered.
PENDING_PRESETS: dict[str, str] = {
    "xint8_weightsonly_adaround": _WEIGHTS_ONLY,
}
