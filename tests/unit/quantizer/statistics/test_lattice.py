"""Values that are integers times a step, and the grids that hold all of them."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.quantizer.toolbox import rng
from worker.quantizer.numerics.integer import IntegerGrid, grid_for_range
from worker.quantizer.statistics.lattice import Lattice, Levels


def lattice_of(values: np.ndarray, batch: int = 7) -> Lattice | None:
    seen = Levels(len(values))
    for start in range(0, len(values), batch):
        part = values[start : start + batch]
        seen.update(part, len(part))
    return seen.result()


def pixels(low: int = 0, high: int = 255) -> np.ndarray:
    return rng(3).integers(low, high + 1, (40, 3, 16, 16)).astype(np.float32)


# What pixels become, and the smallest and the largest one of the data.
EXACT = {
    "as they are": (pixels(), 0, 255),
    "the brightest are missing": (pixels(2, 240) / np.float32(255), 0, 255),
    "around 0": (pixels(10, 250) - np.float32(128), -126, 129),
    "negative": (-pixels(0, 200), -255, 0),
    "few": (pixels(0, 9), 0, 255 / 28),
    "between steps, few": (pixels(0, 99) - np.float32(49.5), -64, 63.5),
}


@pytest.mark.parametrize("name", EXACT)
def test_a_grid_holds_every_value(name: str) -> None:
    values, low, high = EXACT[name]
    unit = 255.0 if name == "the brightest are missing" else 1.0
    lattice = lattice_of(values)
    assert lattice is not None
    found = lattice.exact_range(255)
    assert found is not None
    assert (found.minimum * unit, found.maximum * unit) == pytest.approx((low, high), rel=1e-5, abs=1e-5)
    scale, zero = grid_for_range(np.asarray(found.minimum), np.asarray(found.maximum), "uint8", symmetric=False)
    assert np.abs(IntegerGrid("uint8", scale, zero).fake(values) - values).max() <= 1e-5 * float(scale) * 255


def test_what_no_grid_of_8_bits_holds() -> None:
    halves = lattice_of(pixels() / np.float32(127.5) - 1)
    assert halves is not None and halves.last == 255 and halves.exact_range(255) is None
    assert halves.exact_range(65535) is not None
    wide = lattice_of(pixels() + np.float32(1000))
    assert wide is not None and wide.exact_range(255) is None


@pytest.mark.parametrize(
    "values",
    [
        rng(1).random((40, 8)).astype(np.float32),
        np.stack([pixels() * 0.017, pixels() * 0.018], axis=1),
        pixels(0, 1),
        np.where(pixels() > 200, np.float32(np.nan), pixels()),
        pixels(0, 30) ** np.float32(1.5),
    ],
    ids=["any", "two scales", "flags", "NaN", "gaps"],
)
def test_what_lies_on_no_lattice(values: np.ndarray) -> None:
    assert lattice_of(values) is None
