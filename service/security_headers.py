"""What every answer tells a browser that it may do with it: those of the application, and those of the server alone."""

from __future__ import annotations

_EVERYWHERE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# Of an answer that says itself that pages of all origins may show it within theirs.
EMBEDDABLE = "frame-ancestors *"
_AGAINST_FRAMES = "X-Frame-Options"
_POLICY = "Content-Security-Policy"
_OF_PAGES = "frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'"
_OF_OTHERS = "default-src 'none'; frame-ancestors 'none'; sandbox"


def security_headers(*, page: bool = False, embeddable: bool = False) -> dict[str, str]:
    """The headers.

    Args:
        page: it is shown; all else is nothing that a browser could show or run.
        embeddable: its own policy lets pages of other origins show it.
    """
    found = {**_EVERYWHERE, _POLICY: _OF_PAGES if page else _OF_OTHERS}
    if embeddable:
        del found[_AGAINST_FRAMES]
    return found
