"""How templates are filled in: of reports, and of the pages that show them."""

from __future__ import annotations

from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined
from markupsafe import Markup

from service.reports import figures
from service.reports.names import name, prose


def environment_of(loader: BaseLoader) -> Environment:
    """An environment of templates; whatever an expression gives is escaped, and first made fit to be shown."""
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=presentable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "name": name,
        "figure": figures.figure,
        "change": figures.change,
        "size": figures.size,
        "seconds": figures.seconds,
        "percent": figures.percent,
        "milliseconds": figures.milliseconds,
    }
    return made


def presentable(value: Any) -> Any:
    """What every expression of a template goes through before it is escaped: no text gets around it."""
    if value is None:
        return figures.NOTHING
    return prose(value) if isinstance(value, str) and not isinstance(value, Markup) else value
