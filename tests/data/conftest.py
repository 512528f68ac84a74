"""Numerics are tested as they are on a CPU that does not saturate."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.exact_sums import make_sums_exact


@pytest.fixture(autouse=True, scope="module")
def _exact_sums() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_sums_exact(patch)
        yield
