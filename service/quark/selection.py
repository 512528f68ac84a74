"""Names, patterns and sub-graphs by which Quark excludes nodes or singles them out."""

from __future__ import annotations

from typing import Any

from service.contracts.base import below
from service.contracts.selectors import PatternError, compiled
from service.quark.draft import BAD_VALUE, QuarkDraft


def exclude(draft: QuarkDraft, entries: Any, at: str, *, subgraphs: bool = False) -> None:
    """Add the selectors of a list of names, patterns and sub-graphs to ``exclude``.

    ``subgraphs`` is True for a list of sub-graphs alone, in which a name has no place.
    """
    if not isinstance(entries, list):
        draft.problem(at, "must be a list", BAD_VALUE)
        return
    for k, entry in enumerate(entries):
        if subgraphs and isinstance(entry, str):
            draft.problem(below(at, k), "must be a sub-graph: [[first nodes], [last nodes]]", BAD_VALUE)
            continue
        selector = selector_of(draft, entry, below(at, k))
        if selector is not None:
            leave_out(draft, selector, below(at, k))


def leave_out(draft: QuarkDraft, selector: dict[str, Any], at: str) -> None:
    """Add one selector to ``exclude``."""
    chosen = draft.config.setdefault("exclude", [])
    if selector not in chosen:
        draft.origins[f"exclude/{len(chosen)}"] = at
        chosen.append(selector)


def selector_of(draft: QuarkDraft, entry: Any, at: str) -> dict[str, Any] | None:
    """Our selector for a name, a pattern (it begins with ``^``) or ``[[first nodes], [last nodes]]``."""
    if isinstance(entry, str) and entry.startswith("^"):
        return _pattern(draft, entry, at)
    if isinstance(entry, str) and entry:
        return {"node": entry}
    if isinstance(entry, list) and len(entry) == 1 and isinstance(entry[0], list):
        return selector_of(draft, entry[0], at)  # a list around the tuple, as Quark's type hints have it
    if isinstance(entry, list) and len(entry) == 2 and all(_names(end) for end in entry):
        first, last = ([end] if isinstance(end, str) else end for end in entry)
        return {"from_nodes": first, "to_nodes": last}
    draft.problem(at, "must be a name, a pattern such as '^/layer1/.*', or [[first nodes], [last nodes]]", BAD_VALUE)
    return None


def _names(end: Any) -> bool:
    if isinstance(end, str):
        return bool(end)
    return isinstance(end, list) and bool(end) and all(isinstance(name, str) and name for name in end)


def _pattern(draft: QuarkDraft, pattern: str, at: str) -> dict[str, Any] | None:
    """Quark searches for the pattern; our regex has to match the whole name."""
    try:
        compiled(pattern)
    except PatternError as error:
        draft.problem(at, f"not a regular expression: {error}", BAD_VALUE)
        return None
    if ".*" not in pattern:
        draft.problem(at, "a pattern has to contain '.*'; without it Quark, too, takes no notice of it", BAD_VALUE)
        return None
    return {"regex": f".*(?:{pattern}).*" if "|" in pattern else f"(?:{pattern}).*"}
