"""Solves one layer from second moments: integers and bias whose outputs come closest to those of the float network.

The error E ||f(V x~ + b) - f(W x + b_0)||^2 is measured on patches of the calibration samples, x~ in the quantized
network and x in the float one, f the activation function behind the layer. It is minimized in four steps:

1. Without f and without rounding the best V is a regression. It also makes up for the errors of the layers before, as
   far as the samples tell them from noise: a ridge, chosen on samples left out, holds it to W.
2. V is rounded in the metric of the inputs: E ||(V_q - V) x~||^2 is a quadratic whose integer minimum is searched by
   coordinate descent from several starts.
3. b is the mean of what is left, rounded to its own grid.
4. f is brought in by majorization: where f clips both outputs alike, the wanted value is moved to the present one,
   which costs nothing there; elsewhere it stays. Steps 1 to 3 are repeated on these targets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from worker.quantizer.finetune.patches import Patches
from worker.quantizer.finetune.rounding import Lattice, Moments, descend, error, round_in_turn

# Ridges to choose from, in units of the mean variance of the inputs.
_RIDGES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
_LEFT_OUT = 0.25
# Scales are chosen on one patch out of so many.
_EVERY = 4


@dataclass(frozen=True)
class Layer:
    """What is to be solved. Arrays are float32; the matrix is [groups, outputs, inputs], biases are [groups, outputs].

    Attributes:
        matrix: W.
        lattice: values that V can take.
        z: as the quantized network has them now.
        bias: as the quantized network has it now.
        round_bias: rounds a bias to its grid; None: the bias stays as it is.
        limits: lowest and highest value that the activation function lets through; each broadcasts to
            [groups, outputs, 1]. None: there is none, or it is of another kind.
        rescaled: scales to choose from; None: the scale stays.
    """

    matrix: np.ndarray
    lattice: Lattice
    z: np.ndarray
    bias: np.ndarray
    round_bias: Callable[[np.ndarray], np.ndarray] | None
    limits: tuple[np.ndarray, np.ndarray] | None
    rescaled: Rescaled | None = None


@dataclass(frozen=True)
class Rescaled:
    """Other scales that the weight may get.

    Attributes:
        factors: by which the present scale may be multiplied; then those by which the best of these may be, and so on.
        lattice: the values that V can take with a factor per channel, float32 [groups, outputs, 1].
        per_channel: each channel has a scale of its own.
    """

    factors: Sequence[Sequence[float]]
    lattice: Callable[[np.ndarray], Lattice]
    per_channel: bool


@dataclass(frozen=True)
class GramSettings:
    """How hard to try.

    Attributes:
        sweeps: of coordinate descent, at most.
        rounds: repetitions with the activation function brought in.
        rounding_ridge: share of the mean variance that is added to all directions when V is rounded.
    """

    sweeps: int = 3
    rounds: int = 2
    rounding_ridge: float = 0.05
    ridges: Sequence[float] = _RIDGES


@dataclass(frozen=True)
class Solved:
    """The outcome.

    Attributes:
        z: integers from the zero point, float32 [groups, outputs, inputs].
        bias: float32 [groups, outputs].
        before: mean square error behind the activation function, as the layer was.
        after: the same with ``z`` and ``bias``; never above ``before``.
        ridge: chosen.
        step: of the lattice that ``z`` counts on, as in ``Lattice``.
    """

    z: np.ndarray
    bias: np.ndarray
    before: float
    after: float
    ridge: float
    step: np.ndarray


def solve(layer: Layer, patches: Patches, settings: GramSettings, check: Callable[[], None] = lambda: None) -> Solved:
    """The best integers and bias that are found; those of ``layer`` if none are better.

    Args:
        layer: what is to be solved.
        patches: what it reads and should make.
        settings: how hard to try.
        check: called now and then; may raise.
    """
    problem = _Problem(layer, patches, settings, check)
    before = problem.loss(problem.outputs(layer.z, layer.bias))
    best = (before, layer.z, layer.bias, layer.lattice.step)
    ridge = problem.choose_ridge()
    values, offset = problem.regression(ridge)
    if layer.rescaled is not None:
        problem.choose_scale(layer.rescaled, values, offset)
    z, bias = problem.first(values, offset)
    for left in reversed(range(1 + (settings.rounds if layer.limits is not None else 0))):
        made = problem.outputs(z, bias)
        found = problem.loss(made)
        if found < best[0]:
            best = (found, z, bias, problem.lattice.step)
        if left:
            z, bias = problem.again(z, made)
    return Solved(best[1], best[2], before, best[0], ridge, best[3])


class _Problem:
    def __init__(self, layer: Layer, patches: Patches, settings: GramSettings, check: Callable[[], None]) -> None:
        self.layer, self.y, self.settings, self.check = layer, patches.y, settings, check
        self.lattice = layer.lattice
        self.free_bias = layer.round_bias is not None
        x = patches.x
        self.n = x.shape[2]
        self.mean = x.mean(axis=2) if self.free_bias else np.zeros(x.shape[:2], np.float32)
        self.x = x - self.mean[:, :, None] if self.free_bias else x
        self.cut = max(1, int(self.n * (1 - _LEFT_OUT)))
        kept, left = self.x[:, :, : self.cut], self.x[:, :, self.cut :]
        self.kept = _second(kept, kept)
        self.inputs = self.kept + _second(left, left)
        self.unit = np.maximum(np.einsum("gkk->g", self.inputs) / self.inputs.shape[1], np.float32(1e-20))
        self.metric = _with_ridge(self.inputs, settings.rounding_ridge * self.unit)
        self.own = np.matmul(layer.matrix, self.inputs)
        self.inverse = self.inputs
        self.wanted = self.clipped(self.y.copy())

    def outputs(self, z: np.ndarray, bias: np.ndarray) -> np.ndarray:
        """Before the activation function, float32 [groups, outputs, n]."""
        return self.made(z * self.lattice.step, bias, self.x)

    def made(self, values: np.ndarray, bias: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Outputs of centered inputs ``x``."""
        found: np.ndarray = np.matmul(values, x)
        found += (bias + np.einsum("gok,gk->go", values, self.mean))[:, :, None]
        return found

    def clipped(self, outputs: np.ndarray) -> np.ndarray:
        """Behind the activation function; in place."""
        return outputs if self.layer.limits is None else np.clip(outputs, *self.layer.limits, out=outputs)

    def loss(self, outputs: np.ndarray, first: int = 0) -> float:
        """Mean square error behind the activation function, from patch ``first`` on."""
        off = self.clipped(outputs.copy())
        off -= self.wanted[:, :, first:]
        return float(np.vdot(off, off)) / off.size

    def choose_ridge(self) -> float:
        """The ridge whose regression on some of the samples fits the others best, behind the activation function."""
        layer, cut = self.layer, self.cut
        if cut == self.n or len(self.settings.ridges) == 1:
            return self.settings.ridges[-1]
        left = self.x[:, :, cut:]
        offset = self._offset(self.y[:, :, :cut])
        cross = _second(self.y[:, :, :cut] - offset[:, :, None], self.x[:, :, :cut])
        cross -= np.matmul(layer.matrix, self.kept)
        best = (float("inf"), 0.0)
        for ridge in self.settings.ridges:
            self.check()
            inverse = _inverse(_with_ridge(self.kept, ridge * cut / self.n * self.unit))
            values = layer.matrix + np.matmul(cross, inverse)
            bias = offset - np.einsum("gok,gk->go", values, self.mean) if self.free_bias else layer.bias
            best = min(best, (self.loss(self.made(values, bias, left), cut), ridge))
        return best[1]

    def _offset(self, targets: np.ndarray) -> np.ndarray:
        """What is taken from the targets before V is fitted: their mean, or the bias that stays."""
        return targets.mean(axis=2) if self.free_bias else self.layer.bias

    def regression(self, ridge: float) -> tuple[np.ndarray, np.ndarray]:
        """V without the activation function and without rounding, and what the bias adds to it."""
        self.inverse = _inverse(_with_ridge(self.inputs, ridge * self.unit))
        return self._regression(self.y.copy())

    def choose_scale(self, rescaled: Rescaled, values: np.ndarray, offset: np.ndarray) -> None:
        """Take the scales with which V, rounded to the nearest, comes closest behind the activation function."""
        x, wanted = self.x[:, :, ::_EVERY], self.wanted[:, :, ::_EVERY]
        groups, outputs, _ = values.shape
        best, least = np.ones((groups, outputs, 1), np.float32), np.full((groups, outputs), np.inf)
        for factors in rescaled.factors:
            base = best
            for factor in factors:
                self.check()
                tried = base * np.float32(factor)
                lattice = rescaled.lattice(tried)
                rounded = lattice.nearest(values) * lattice.step
                bias = offset - np.einsum("gok,gk->go", rounded, self.mean) if self.free_bias else self.layer.bias
                off = self.clipped(self.made(rounded, bias, x))
                off -= wanted
                errors = np.einsum("gon,gon->go", off, off, dtype=np.float64)
                if not rescaled.per_channel:
                    errors[...] = errors.sum()
                better = errors < least
                least = np.where(better, errors, least)
                best = np.where(better[:, :, None], tried, best)
        self.lattice = rescaled.lattice(best)

    def first(self, values: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Integers and bias without the activation function."""
        starts = [self.lattice.nearest(self.layer.matrix), round_in_turn(values, self.lattice, self.metric)]
        return self._round(starts, values, offset)

    def again(self, z: np.ndarray, made: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Integers and bias from targets that are moved to where the activation function does not tell them apart.

        ``made`` are the outputs of ``z``.
        """
        assert self.layer.limits is not None  # noqa: S101 - the caller looked
        low, high = self.layer.limits
        targets = self.y.copy()
        np.copyto(targets, np.minimum(made, low), where=self.y <= low)
        np.copyto(targets, np.maximum(made, high), where=self.y >= high)
        values, offset = self._regression(targets)
        return self._round([z], values, offset)

    def _regression(self, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """V, and what the bias adds to it; ``targets`` is written over."""
        offset = self._offset(targets)
        targets -= offset[:, :, None]
        cross = _second(targets, self.x)
        cross -= self.own
        return self.layer.matrix + np.matmul(cross, self.inverse), offset

    def _round(
        self, starts: Sequence[np.ndarray], values: np.ndarray, offset: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        layer, lattice = self.layer, self.lattice
        moments = Moments(self.metric, np.matmul(values, self.metric))
        found = [descend(z, lattice, moments, sweeps=self.settings.sweeps, check=self.check) for z in starts]
        errors = np.stack([error(z, lattice, moments) for z in found])
        z = np.take_along_axis(np.stack(found), errors.argmin(axis=0)[None, :, :, None], axis=0)[0]
        if layer.round_bias is None:
            return z, layer.bias
        return z, layer.round_bias(offset - np.einsum("gok,gk->go", z * lattice.step, self.mean))


def _second(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """sum_n a b^T for every group."""
    if len(a) == 1:  # two axes: a product with itself is computed by halves
        halves: np.ndarray = np.matmul(a[0], b[0].T)[None]
        return halves
    products: np.ndarray = np.matmul(a, np.swapaxes(b, 1, 2))
    return products


def _with_ridge(inputs: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    made = inputs.copy()
    np.einsum("gkk->gk", made)[...] += ridge[:, None].astype(np.float32)
    return made


def _inverse(inputs: np.ndarray) -> np.ndarray:
    return np.linalg.inv(inputs.astype(np.float64)).astype(np.float32)
