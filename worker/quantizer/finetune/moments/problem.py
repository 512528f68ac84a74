"""Solves one layer from second moments: integers and bias whose outputs come closest to those of the float network.

The error E ||f(V x~ + b) - f(W x + b_0)||^2 is measured on patches of the calibration samples, x~ in the quantized
network and x in the float one, f the activation function behind the layer. It is minimized in four steps:

1. Without f and without rounding the best V is a regression. It also makes up for the errors of the layers before, as
   far as the samples tell them from noise: a ridge, chosen on samples left out, holds it to W.
2. V is rounded in the metric of the inputs: E ||(V_q - V) x~||^2 is a quadratic whose integer minimum is searched by
   coordinate descent from several starts. A ridge, chosen likewise, counts directions that the samples do not show.
3. b is the mean of what is left, rounded to its own grid.
4. f is brought in by majorization: where f clips both outputs alike, the wanted value is moved to the present one,
   which costs nothing there; elsewhere it stays. Steps 1 to 3 are repeated on these targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from worker.quantizer.finetune.moments.rounding import (
    NUMPY,
    Array,
    Arrays,
    Lattice,
    SecondMoments,
    descend,
    error,
    matmul,
    round_by_gptq,
)
from worker.quantizer.graph.values import is_constant, users
from worker.quantizer.layerwise import Visit
from worker.quantizer.ops.linear import LinearNode

# Some of the patches that a layer sees, and what the float network makes of them.
#
# A layer at the end of a residual block is solved for the sum that its result goes into, where nothing reads the result
# before. The quantized network adds it to a shortcut that is off already: a layer that is solved for the sum takes up a
# part of that error, as far as its own inputs tell of it; one that is solved for its result alone hands it on from
# block to block.


@dataclass(frozen=True)
class Patches:
    """Input patches of the quantized network beside outputs of the float network, at the same positions."""

    x: np.ndarray  # float32 [groups, inputs, n]
    y: np.ndarray  # float32 [groups, outputs, n], before the activation function
    # what the quantized network adds to the layer's result, laid out like ``y``, where ``y`` is made for the sum of
    # both; None: nothing
    beside: np.ndarray | None = None


def sample_patches(
    visit: Visit,
    linear: LinearNode,
    matrix: np.ndarray,
    bias: np.ndarray,
    *,
    wanted: int,
    seed: int,
    quantized_share: float = 1.0,
    beside: str | None = None,
) -> Patches:
    """About ``wanted`` patches, drawn evenly from all samples without replacement.

    Args:
        visit: of the node.
        linear: the node.
        matrix: float32 [groups, outputs, inputs], the float weight.
        bias: float32 [groups, outputs], the float bias.
        wanted: how many.
        seed: of the choice.
        quantized_share: of the elements of x; the others are the float network's, at random (Wei et al. 2022, QDrop).
        beside: a tensor that waits and is added to the result: ``y`` is what makes the sum that of the float network.
    """
    groups, outputs, inputs = linear.matrix_shape
    samples = visit.samples
    quotas = [-(-wanted * part.valid // samples) for part in visit.parts]
    x = np.empty((groups, inputs, sum(quotas)), np.float32)
    y = np.empty((groups, outputs, sum(quotas)), np.float32)
    added = None if beside is None else np.empty_like(y)
    done = 0
    random = np.random.default_rng(seed)
    for part, quota in zip(visit.parts, quotas, strict=True):
        floats = visit.x(part)
        positions = linear.positions(floats)
        chosen = np.arange(positions)
        if quota < positions:
            chosen = np.sort(random.choice(positions, quota, replace=False))
        to = slice(done, done + len(chosen))
        exact, mask = linear.patches(floats, chosen)
        inside = np.True_ if mask is None else mask
        exact = exact * inside
        matmul(matrix, exact, out=y[:, :, to])
        if beside is not None and added is not None:
            added[:, :, to] = linear.results(visit.tensor(beside, part, quantized=True), chosen)
            y[:, :, to] += linear.results(visit.tensor(beside, part, quantized=False), chosen) - added[:, :, to]
        stored, grid = visit.x_stored(part)
        found, _ = linear.patches(stored, chosen)
        np.multiply(found if grid is None else grid.dequantize(found), inside, out=x[:, :, to])
        if quantized_share < 1.0:
            np.copyto(x[:, :, to], exact, where=random.random(exact.shape, np.float32) >= quantized_share)
        done = to.stop
    x, y = x[:, :, :done], y[:, :, :done]
    y += bias[:, :, None]
    return Patches(x, y, None if added is None else added[:, :, :done])


@dataclass(frozen=True)
class ResidualAdd:
    """An Add that reads a layer's result, and nothing else does."""

    other: ir.Value  # what is added
    result: ir.Value  # the sum


def residual_add(node: ir.Node) -> ResidualAdd | None:
    """The sum of the node's result and an activation of the same shape; constants may be added before.

    None: others read the result too, it passes something else before, or its shape is not known to be that of the
    other operand.
    """
    value = node.outputs[0]
    while len(readers := users(value)) == 1 and not value.is_graph_output():
        reader = readers[0]
        if reader.op_type != "Add" or reader.domain not in ("", "ai.onnx") or len(reader.inputs) != 2:
            return None
        first, second = reader.inputs
        other = second if first is value else first
        if other is None or other is value:
            return None
        if not is_constant(other):
            return ResidualAdd(other, reader.outputs[0])
        value = reader.outputs[0]
    return None


# Ridges to choose from, in units of the mean variance of the inputs.
_RIDGES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)
# Shares of the mean variance to choose from that are added to all directions when V is rounded.
_ROUNDING_RIDGES = (0.05, 0.2, 1.0, 5.0, 25.0)
# Sweeps of coordinate descent at most, and repetitions with the activation function brought in.
_SWEEPS, _ROUNDS = 3, 2
_LEFT_OUT = 0.25
# Scales are chosen on one patch out of so many, but on no fewer patches than these.
_EVERY, _FEWEST_FOR_SCALE = 4, 1024
_ALL = slice(None)


@dataclass(frozen=True)
class LayerProblem:
    """What is to be solved. Arrays are float32; the matrix is [groups, outputs, inputs], biases are [groups, outputs].

    They are NumPy's outside of the solver. What is called, ``round_bias`` and the lattice of ``rescaled``, always takes
    and returns NumPy's.
    """

    matrix: Array  # W
    lattice: Lattice  # values that V can take
    z: Array  # as the quantized network has them now
    bias: Array  # as the quantized network has it now
    round_bias: Callable[[np.ndarray], np.ndarray] | None  # rounds a bias to its grid; None: the bias stays as it is
    # lowest and highest value that the activation function lets through; each broadcasts to [groups, outputs, 1]. None:
    # there is none, or it is of another kind.
    limits: tuple[Array, Array] | None
    rescaled: Rescaled | None = None  # scales to choose from; None: the scale stays

    def on(self, arrays: Arrays) -> LayerProblem:
        """A problem of NumPy's arrays as one of ``arrays``."""
        return replace(
            self,
            lattice=self.lattice.on(arrays),
            limits=None if self.limits is None else (arrays.of(self.limits[0]), arrays.of(self.limits[1])),
            matrix=arrays.of(self.matrix),
            z=arrays.of(self.z),
            bias=arrays.of(self.bias),
        )


@dataclass(frozen=True)
class Rescaled:
    """Other scales that the weight may get."""

    # by which the present scale may be multiplied; then those by which the best of these may be, and so on
    factors: Sequence[Sequence[float]]
    # the values that V can take with a factor per channel, float32 [groups, outputs, 1]
    lattice: Callable[[np.ndarray], Lattice]
    per_channel: bool  # each channel has a scale of its own


@dataclass(frozen=True)
class LayerSolution:
    """The outcome."""

    z: np.ndarray  # integers from the zero point, float32 [groups, outputs, inputs]
    bias: np.ndarray  # float32 [groups, outputs]
    before: float  # mean square error behind the activation function, as the layer was
    after: float  # the same with ``z`` and ``bias``; never above ``before``
    ridge: float  # chosen
    step: np.ndarray  # of the lattice that ``z`` counts on, as in ``Lattice``


def solve(
    problem: LayerProblem,
    patches: Patches,
    check: Callable[[], None] = lambda: None,
    arrays: Arrays = NUMPY,
) -> LayerSolution:
    """The best integers and bias that are found; those of ``problem`` if none are better.

    ``arrays`` are what is computed with, and so where.

    Raises:
        torch.OutOfMemoryError: the device of ``arrays`` has too little memory.
    """
    with arrays.session():
        return _solve(problem.on(arrays), patches, check)


def _solve(problem: LayerProblem, patches: Patches, check: Callable[[], None]) -> LayerSolution:
    solver = _Solver(problem, patches, check)
    before = solver.loss(solver.outputs(problem.z, problem.bias))
    best = (before, problem.z, problem.bias, problem.lattice.step)
    ridge = solver.choose_ridge()
    values, offset = solver.regression(ridge)
    if problem.rescaled is not None:
        solver.choose_scale(problem.rescaled, values, offset)
    z, bias = solver.first(values, offset)
    for left in reversed(range(1 + (_ROUNDS if problem.limits is not None else 0))):
        made = solver.outputs(z, bias)
        found = solver.loss(made)
        if found < best[0]:
            best = (found, z, bias, solver.lattice.step)
        if left:
            z, bias = solver.again(z, made)
    z, bias, step = (problem.lattice.arrays.numpy(array) for array in best[1:])
    return LayerSolution(z, bias, before, best[0], ridge, step)


class _Solver:
    def __init__(self, problem: LayerProblem, patches: Patches, check: Callable[[], None]) -> None:
        self.xp = xp = problem.lattice.arrays
        x, self.y = xp.of(patches.x), xp.of(patches.y)
        self.problem, self.check = problem, check
        self.limits = _limits_beside(xp, problem.limits, patches.beside)
        self.lattice = problem.lattice
        self.free_bias = problem.round_bias is not None
        self.n = x.shape[2]
        self.mean = x.mean(axis=2) if self.free_bias else xp.of(np.zeros(x.shape[:2], np.float32))
        self.x = x - self.mean[:, :, None] if self.free_bias else x
        self.cut = max(1, int(self.n * (1 - _LEFT_OUT)))
        kept, left = self.x[:, :, : self.cut], self.x[:, :, self.cut :]
        self.kept = _second(xp, kept, kept)
        self.inputs = self.kept + _second(xp, left, left)
        self.unit = xp.lib.clip(xp.lib.einsum("gkk->g", self.inputs) / self.inputs.shape[1], 1e-20, None)
        self.metric = self.inputs
        self.own = xp.matmul(problem.matrix, self.inputs)
        self.inverse = self.inputs
        self.wanted = self.clipped(xp.copy(self.y))

    def outputs(self, z: Array, bias: Array) -> Array:
        """Before the activation function, float32 [groups, outputs, n]."""
        return self.made(z * self.lattice.step, bias, self.x)

    def made(self, values: Array, bias: Array, x: Array) -> Array:
        """Outputs of centered inputs ``x``."""
        found = self.xp.matmul(values, x)
        found += (bias + self._of_mean(values))[:, :, None]
        return found

    def clipped(self, outputs: Array, part: slice = _ALL) -> Array:
        """Outputs of the patches ``part`` behind the activation function; in place."""
        if self.limits is None:
            return outputs
        low, high = (limit[:, :, part] if limit.shape[2] == self.n else limit for limit in self.limits)
        return self.xp.lib.clip(outputs, low, high, out=outputs)

    def loss(self, outputs: Array, first: int = 0) -> float:
        """Mean square error behind the activation function, from patch ``first`` on."""
        off = self.clipped(self.xp.copy(outputs), slice(first, None))
        off -= self.wanted[:, :, first:]
        size: int = math.prod(off.shape)
        return float(self.xp.dot(off, off)) / size

    def choose_ridge(self) -> float:
        """The ridge whose regression on some of the samples fits the others best, behind the activation function."""
        xp, problem, cut = self.xp, self.problem, self.cut
        if cut == self.n:
            return _RIDGES[-1]
        left = self.x[:, :, cut:]
        offset = self._offset(self.y[:, :, :cut])
        cross = _second(xp, self.y[:, :, :cut] - offset[:, :, None], self.x[:, :, :cut])
        cross -= xp.matmul(problem.matrix, self.kept)
        best = (float("inf"), 0.0)
        for ridge in _RIDGES:
            self.check()
            inverse = _inverse(xp, _with_ridge(xp, self.kept, ridge * cut / self.n * self.unit))
            values = problem.matrix + xp.matmul(cross, inverse)
            bias = offset - self._of_mean(values) if self.free_bias else problem.bias
            best = min(best, (self.loss(self.made(values, bias, left), cut), ridge))
        return best[1]

    def _of_mean(self, values: Array) -> Array:
        """What ``values`` make of the mean of the inputs, [groups, outputs]."""
        return self.xp.lib.einsum("gok,gk->go", values, self.mean)

    def _offset(self, targets: Array) -> Array:
        """What is taken from the targets before V is fitted: their mean, or the bias that stays."""
        return targets.mean(axis=2) if self.free_bias else self.problem.bias

    def regression(self, ridge: float) -> tuple[Array, Array]:
        """V without the activation function and without rounding, and what the bias adds to it."""
        self.inverse = _inverse(self.xp, _with_ridge(self.xp, self.inputs, ridge * self.unit))
        return self._regression(self.xp.copy(self.y))

    def choose_scale(self, rescaled: Rescaled, values: Array, offset: Array) -> None:
        """Take the scales with which V, rounded to the nearest, comes closest behind the activation function."""
        xp, some = self.xp, slice(None, None, max(1, min(_EVERY, self.n // _FEWEST_FOR_SCALE)))
        x, wanted = self.x[:, :, some], self.wanted[:, :, some]
        groups, outputs, _ = values.shape
        best, least = np.ones((groups, outputs, 1), np.float32), np.full((groups, outputs), np.inf)
        for factors in rescaled.factors:
            base = best
            for factor in factors:
                self.check()
                tried = base * np.float32(factor)
                lattice = rescaled.lattice(tried).on(xp)
                rounded = lattice.nearest(values) * lattice.step
                bias = offset - self._of_mean(rounded) if self.free_bias else self.problem.bias
                off = self.clipped(self.made(rounded, bias, x), some)
                off -= wanted
                errors = xp.numpy(xp.row_dots(off, off))
                if not rescaled.per_channel:
                    errors[...] = errors.sum()
                better = errors < least
                least = np.where(better, errors, least)
                best = np.where(better[:, :, None], tried, best)
        self.lattice = rescaled.lattice(best).on(xp)

    def first(self, values: Array, offset: Array) -> tuple[Array, Array]:
        """Integers and bias without the activation function."""
        self.metric = self.rounding_metric(values)
        starts = [self.lattice.nearest(self.problem.matrix), round_by_gptq(values, self.lattice, self.metric)]
        return self._round(starts, values, offset)

    def rounding_metric(self, values: Array) -> Array:
        """Second moments of the inputs with the ridge whose rounding on some of the samples does best on the others.

        Few samples do not span the inputs: errors that they do not see would be free, and others do see them.
        """
        xp, cut = self.xp, self.cut
        ridge = _ROUNDING_RIDGES[0]
        if cut < self.n:
            left = SecondMoments(self.inputs - self.kept, xp.matmul(values, self.inputs - self.kept))
            best = float("inf")
            for tried in _ROUNDING_RIDGES:
                self.check()
                z = round_by_gptq(values, self.lattice, _with_ridge(xp, self.kept, tried * cut / self.n * self.unit))
                found = float(error(z, self.lattice, left).sum())
                if found < best:
                    best, ridge = found, tried
        return _with_ridge(xp, self.inputs, ridge * self.unit)

    def again(self, z: Array, made: Array) -> tuple[Array, Array]:
        """Integers and bias from targets that are moved to where the activation function does not tell them apart.

        ``made`` are the outputs of ``z``.
        """
        assert self.limits is not None  # noqa: S101 - the caller looked
        xp, (low, high) = self.xp, self.limits
        targets = xp.copy(self.y)
        xp.copy_where(targets, xp.lib.minimum(made, low), self.y <= low)
        xp.copy_where(targets, xp.lib.maximum(made, high), self.y >= high)
        values, offset = self._regression(targets)
        return self._round([z], values, offset)

    def _regression(self, targets: Array) -> tuple[Array, Array]:
        """V, and what the bias adds to it; ``targets`` is written over."""
        offset = self._offset(targets)
        targets -= offset[:, :, None]
        cross = _second(self.xp, targets, self.x)
        cross -= self.own
        return self.problem.matrix + self.xp.matmul(cross, self.inverse), offset

    def _round(self, starts: Sequence[Array], values: Array, offset: Array) -> tuple[Array, Array]:
        xp, problem, lattice = self.xp, self.problem, self.lattice
        moments = SecondMoments(self.metric, xp.matmul(values, self.metric))
        found = [descend(z, lattice, moments, sweeps=_SWEEPS, check=self.check) for z in starts]
        errors = xp.lib.stack([error(z, lattice, moments) for z in found])
        z = xp.take_first(xp.lib.stack(found), errors.argmin(axis=0)[None, :, :, None])[0]
        if problem.round_bias is None:
            return z, problem.bias
        return z, xp.of(problem.round_bias(xp.numpy(offset - self._of_mean(z * lattice.step))))


def _limits_beside(
    xp: Arrays, limits: tuple[Array, Array] | None, beside: np.ndarray | None
) -> tuple[Array, Array] | None:
    """What gets through to the sum, patch by patch: limits of the sum, less what is added to the result."""
    if limits is None or beside is None:
        return limits
    added = xp.of(beside)
    return limits[0] - added, limits[1] - added


def _second(xp: Arrays, a: Array, b: Array) -> Array:
    """sum_n a b^T for every group."""
    if len(a) == 1:  # two axes: a product with itself is computed by halves
        return xp.matmul(a[0], b[0].T)[None]
    return xp.matmul(a, xp.lib.swapaxes(b, 1, 2))


def _with_ridge(xp: Arrays, inputs: Array, ridge: Array) -> Array:
    made = xp.copy(inputs)
    diagonal = xp.diagonal(made)
    diagonal += ridge[:, None]
    return made


def _inverse(xp: Arrays, inputs: Array) -> Array:
    return xp.single(xp.lib.linalg.inv(xp.double(inputs)))
