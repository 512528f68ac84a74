"""What the error of a made-up report comes from."""

from __future__ import annotations

from typing import Any


def causes() -> list[dict[str, Any]]:
    """Two causes: one of layers, and one of the whole network."""
    fact = "the widest channel is 75 times the median one, 0.32 of the signal is error for it"
    spread = [{"node": f"/features/{2 * k}", "error_percent": 40.0 - k, "fact": fact} for k in range(8)]
    return [
        {
            "kind": "channel-spread",
            "message": "one scale serves channels of a weight that differ much in size",
            "error_percent": 91.5,
            "places": spread,
            "places_left_out": 3,
        },
        {
            "kind": "saturation",
            "message": "this host's CPU adds products of 8 bits in 16 bits, which overflows",
            "error_percent": 8.5,
            "places": [{"node": "", "error_percent": 8.5, "fact": "SQNR 12.0 dB here, 21.4 dB where it does not"}],
        },
    ]
