"""How far integers and scales trust the samples: as far as other samples bear them out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from worker.quantizer.finetune.moments import problem as moments
from worker.quantizer.finetune.moments.problem import LayerProblem, LayerSolution, Patches, Rescaled, solve
from worker.quantizer.finetune.moments.rounding import Lattice

OUTPUTS, INPUTS = 24, 96
FEW, MANY, FRESH = 60, 4000, 4000


def layer(random: np.random.Generator) -> LayerProblem:
    """A layer of 4 bits without an activation function, rounded to the nearest."""
    matrix = random.normal(size=(1, OUTPUTS, INPUTS)).astype(np.float32)
    step = np.abs(matrix).max(axis=2, keepdims=True) / np.float32(7)
    lattice = Lattice(step, np.full_like(step, -8), np.full_like(step, 7))
    zero = np.zeros((1, OUTPUTS), np.float32)
    return LayerProblem(matrix, lattice, lattice.nearest(matrix), zero, lambda values: values, None)


def patches(problem: LayerProblem, count: int, seed: int) -> Patches:
    """Inputs that hang together, as those of a network do: half of them follow eight sources."""
    random = np.random.default_rng(seed)
    mixing = np.random.default_rng(0).normal(size=(INPUTS, 8))
    x = (mixing @ random.normal(size=(8, count)) + random.normal(size=(INPUTS, count))).astype(np.float32)[None]
    return Patches(x, problem.matrix @ x)


def error_on(solution: LayerSolution, data: Patches) -> float:
    """Mean square error of the outputs on other patches."""
    made = (solution.z * solution.step) @ data.x + solution.bias[:, :, None]
    return float(np.square(made - data.y).mean())


@pytest.mark.parametrize(("count", "gains"), [(FEW, True), (MANY, False)])
def test_few_patches_are_trusted_less(count: int, gains: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layer(np.random.default_rng(1))
    known, fresh = patches(problem, count, 2), patches(problem, FRESH, 3)
    chosen = error_on(solve(problem, known), fresh)
    monkeypatch.setattr(moments, "_ROUNDING_RIDGES", moments._ROUNDING_RIDGES[:1])
    least = error_on(solve(problem, known), fresh)
    assert chosen < 0.95 * least if gains else chosen == least


def test_scales_are_chosen_on_all_of_few_patches(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = layer(np.random.default_rng(4))
    step, low, high = problem.lattice.step, problem.lattice.low, problem.lattice.high
    factors = ([0.6, 0.7, 0.8, 0.9, 1.0],)
    free = replace(problem, rescaled=Rescaled(factors, lambda factor: Lattice(step * factor, low, high), True))
    known, fresh = patches(free, FEW, 5), patches(free, FRESH, 6)
    on_all = error_on(solve(free, known), fresh)
    monkeypatch.setattr(moments, "_FEWEST_FOR_SCALE", 1)
    assert on_all < error_on(solve(free, known), fresh)
