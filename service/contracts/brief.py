"""How results look in a Python prompt and in a notebook: a few lines, or a small table."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

Row = tuple[str, str]
_LONGEST = 160


class Brief:
    """A record that is shown by its main facts; ``model_dump_json`` and ``vars`` show all of it."""

    def _brief(self) -> Iterator[Row]:
        """Name and value of each fact."""
        raise NotImplementedError

    def _rows(self) -> list[Row]:
        return [(name, value[:_LONGEST]) for name, value in self._brief() if value]

    def __repr__(self) -> str:
        rows = self._rows()
        width = max((len(name) for name, _ in rows), default=0)
        return "\n".join([f"{type(self).__name__}:", *(f"  {name:<{width}}  {value}" for name, value in rows)])

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        cells = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{escape(value)}</td></tr>'
            for name, value in self._rows()
        )
        return f"<table><caption>{type(self).__name__}</caption><tbody>{cells}</tbody></table>"
