"""How many samples a question takes."""

from __future__ import annotations

import math

# More than anybody has: the figure lies on the limit.
_MOST = 10**9


def samples_needed(figure: float, limit: float, bound: float, samples: int) -> int | None:
    """About so many samples would decide on which side of ``limit`` the figure lies, if it stays where it is.

    The distance of a bound from its figure is sqrt(variance / n) times a quantile, so that n grows with the square of
    what it has to shrink by.

    Args:
        figure: as measured.
        limit: that it is compared with.
        bound: of the figure's interval, the one beyond the limit.
        samples: that the interval rests on.

    Returns:
        More than ``samples``; None if the figure lies on the limit.
    """
    room = abs(figure - limit)
    if room <= 0.0:
        return None
    needed = samples * ((bound - figure) / room) ** 2
    return max(samples + 1, math.ceil(needed)) if needed < _MOST else None
