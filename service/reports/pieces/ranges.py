"""The range of a tensor before and after it was moved, as a small picture within a row of a table."""

from __future__ import annotations

from markupsafe import Markup

from service.contracts.calibration import TensorRange
from service.contracts.report import RangeChange

_WIDTH, _MIDDLE, _THIN = 100.0, 50.0, 0.8


def picture(change: RangeChange) -> Markup:
    """Both ranges on one scale about zero, the old one above; the figures themselves stand beside it."""
    both = (change.before, change.after)
    # halves, as the difference of the largest floats is none
    reach = max(max(abs(one.minimum), abs(one.maximum)) for one in both) or 1.0
    rows = "".join(
        _row(one, reach, top, kind) for one, top, kind in zip(both, (1, 9), ("first", "second"), strict=True)
    )
    return Markup(  # noqa: S704 - numbers and words of ours
        f'<svg class="inrange" viewBox="0 0 100 16" preserveAspectRatio="none" aria-hidden="true">{rows}'
        '<line class="zero" x1="50" x2="50" y1="0" y2="16"/></svg>'
    )


def _row(values: TensorRange, reach: float, top: int, kind: str) -> str:
    low, high = (_MIDDLE + end / reach * (_WIDTH - _MIDDLE) for end in (values.minimum, values.maximum))
    return f'<rect class="{kind}" x="{low:.1f}" y="{top}" width="{max(high - low, _THIN):.1f}" height="6"/>'
