"""Networks and configs drawn at random: each is quantized, valid, what it was, and as near as peers come."""

from __future__ import annotations

import pytest

from tests.generated.judge import judged
from worker.quantizer.runtime.host import saturates_pairs

_BLOCK = 25


@pytest.mark.skipif(
    saturates_pairs(), reason="this CPU has no VNNI: its kernels compute another thing than the file says"
)
@pytest.mark.long
@pytest.mark.parametrize("first", range(0, 300, _BLOCK))
def test_drawn_networks(first: int) -> None:
    found = [judged(seed) for seed in range(first, first + _BLOCK)]
    wrong = {one.seed: (one.fault, one.detail) for one in found if one.fault not in (None, "no float model")}
    assert not wrong
    assert sum(one.fault is None for one in found) > _BLOCK * 3 // 4
