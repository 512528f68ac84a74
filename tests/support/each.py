"""Many cheap cases of one assertion as one test: the failing one is named, and none costs a test of its own.

@each("name", sorted(PRESETS))
@each(("low", "high"), [(0, 1), (-1, 1)])
def test_something(name: str, low: int, high: int, tmp_path: Path) -> None: ...
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import pytest


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run the test once per case, all with the same fixtures; what is left of its parameters stays to pytest."""
    cases = list(cases)
    assert cases

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(test)
        taken = (names,) if isinstance(names, str) else names
        assert set(taken) <= set(signature.parameters), f"{test.__name__} takes no {taken}"

        @wraps(test)
        def run(**others: Any) -> None:
            for case in cases:
                values = dict(zip(taken, (case,) if isinstance(names, str) else case, strict=True))
                try:
                    test(**values, **others)
                except pytest.skip.Exception:
                    raise AssertionError(f"{values} skips: leave it out of the cases") from None
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"case: {values}")
                    raise

        left = [parameter for name, parameter in signature.parameters.items() if name not in taken]
        run.__signature__ = signature.replace(parameters=left)  # type: ignore[attr-defined]
        return run

    return decorate
