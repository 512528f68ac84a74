"""The gradient solver itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import torch
from torch import Tensor

from worker.quantizer.autodiff.program import as_tensor, choose_device, repeatable, threads_worth
from worker.quantizer.finetune.blocks import BlockParameter, BlockResult, BlockSamples, BlockState, ParameterResult
from worker.quantizer.finetune.gradient.network import (
    BlockNetwork,
    DeviceSamples,
    Movable,
    Moving,
    Results,
    channel_axis,
    channels_are_independent,
    choose,
)
from worker.quantizer.finetune.methods import GradientSettings, Method, Spec
from worker.quantizer.numerics.integer import IntegerGrid

# Elements of activations in one evaluation step.
_EVALUATION_ELEMENTS = 4_000_000
# With automatic learning rates a variable moves about so many grid steps at first; the rate falls to 0 on a cosine.
# Where the layers of a block move together, or the best cannot be taken channel by channel, less is safer.
_AUTOMATIC_RATES = {True: 0.1, False: 0.02}
_CURVATURE_PASSES = 24
_CHECK_EVERY = 16
# Errors below this part of the target's mean square are rounding of float32.
_NEGLIGIBLE = 1e-12


def train(
    state: BlockState,
    samples: BlockSamples,
    method: Method,
    *,
    seed: int,
    threads: int = 1,
    check: Callable[[], None] = lambda: None,
) -> BlockResult:
    """Finetune a block on samples.

    ``check`` is called between steps, and raises to stop. Returns what moved; nothing if no step made the error
    smaller.

    Raises:
        EngineError: the device is not available.
        NotDifferentiableError: an operator of the block has no form in torch.
    """
    device = choose_device(method.spec.optim_device)
    batch = min(method.spec.batch_size, samples.count)
    with repeatable(threads_worth(batch * samples.largest_elements, threads)):
        return _Training(state, samples, method, seed, device, check).run()


class _Training:
    def __init__(
        self,
        state: BlockState,
        samples: BlockSamples,
        method: Method,
        seed: int,
        device: torch.device,
        check: Callable[[], None],
    ) -> None:
        self._method = method
        self._spec = method.spec
        self._settings = method.gradient_settings
        self._seed = seed
        self._check = check
        self._device = device
        self._state = state
        self._network = BlockNetwork(state, device)
        self._data = DeviceSamples(samples, device, mixed=self._spec.drop_ratio < 1.0)
        self._axis = channel_axis(state.block)
        self._random = torch.Generator(device).manual_seed(seed)

    def run(self) -> BlockResult:
        present = {name: self._tensor(parameter.present) for name, parameter in self._state.parameters.items()}
        by_channel = self._errors(present)
        before = float(by_channel.sum()) / self._data.outputs
        rate, adjust = self._spec.learning_rate, self._spec.lr_adjust
        if adjust is not None and before > adjust.threshold:
            rate = adjust.learning_rate
        movables = {
            name: self._method.movable(parameter, self._device, math.sqrt(before))
            for name, parameter in self._state.parameters.items()
            if self._method.moves(parameter)
        }
        kept: dict[str, ParameterResult] = {}
        least, steps = float(by_channel.sum()), 0
        if before > _NEGLIGIBLE * self._data.mean_square():
            for group in self._groups(movables):
                now = {name: _present(self._state.parameters[name]) for name in group}
                taken, found = self._descend(group, present, rate, before)
                errors = [by_channel, *(self._errors(present | self._tensors(results)) for results in found)]
                best, least = choose(self._state, [now, *found], errors)
                present |= self._tensors(best)
                kept |= best
                steps += taken
                by_channel = np.asarray([least])
        return self._result(kept, before, min(least / self._data.outputs, before), steps)

    def _groups(self, movables: Mapping[str, Movable]) -> list[dict[str, Movable]]:
        if not self._settings.together:
            return [{name: movable} for name, movable in movables.items()]
        return [dict(movables)] if movables else []

    def _tensors(self, results: Results) -> dict[str, Tensor]:
        return {name: self._tensor(result.present) for name, result in results.items()}

    def _tensor(self, array: np.ndarray) -> Tensor:
        return as_tensor(array, self._device)

    def _descend(
        self, movables: Mapping[str, Movable], present: Mapping[str, Tensor], rate: float | None, before: float
    ) -> tuple[int, list[Results]]:
        """Run Adam; the number of steps, and the results to choose from, the last one first."""
        spec, penalty = self._spec, self._penalty(before)
        variables = [variable for movable in movables.values() for variable in movable.variables]
        first = rate if rate is not None else _AUTOMATIC_RATES[self._is_separable()]
        optimizer = torch.optim.Adam(variables, lr=first, fused=True)
        total, wavers = spec.num_iterations, self._settings.wavers
        mean = _Mean(variables, total) if wavers else None
        # Where no channel can be taken for itself, the best state on the way is worth looking for.
        looks = spec.early_stop or (wavers and not self._is_separable())
        plateau = _Plateau(spec, self._settings) if looks else None
        kept: list[Results] = []
        step, end = 0, total
        if self._settings.dampened:
            self._dampen(movables, present)
        for chosen in self._minibatches(total):
            if step % _CHECK_EVERY == 0:
                self._check()
                if rate is None:
                    optimizer.param_groups[0]["lr"] = first * 0.5 * (1.0 + math.cos(math.pi * step / total))
            self._step(movables, present, chosen, self._method.regularizer(penalty, step, end))
            optimizer.step()
            step += 1
            if mean is not None:
                mean.update(step)
            if plateau is not None and plateau.is_due(step):
                values = {name: movable.value() for name, movable in movables.items()}
                error = float(self._errors({**present, **values}, limit=plateau.probe).sum())
                if plateau.is_best(error) and wavers:
                    kept = [{name: movable.result() for name, movable in movables.items()}]
                if spec.early_stop and plateau.is_over(step):
                    end = min(end, step + plateau.finish)
            if step >= end:
                break
        found = [{name: movable.result() for name, movable in movables.items()}, *kept]
        if mean is not None and mean.take():
            found.append({name: movable.result() for name, movable in movables.items()})
        return step, found

    def _penalty(self, before: float) -> float:
        weights = sum(
            parameter.values.size for parameter in self._state.parameters.values() if parameter.kind == "weight"
        )
        channels = self._data.target(torch.arange(1)).shape[self._axis]
        return self._method.penalty(before, channels, weights)

    def _dampen(self, movables: Mapping[str, Movable], present: Mapping[str, Tensor]) -> None:
        """Give the weights the diagonal of the loss's Gauss-Newton matrix, 2 k J^T J.

        For random signs r the mean of (J^T r)^2 is the diagonal of J^T J (Bekas et al. 2007). Values that a limit cuts
        off have no part in it.
        """
        weights = {name: m for name, m in movables.items() if isinstance(m, Moving) and self._is_rounded(name)}
        if not weights:
            return
        passes = max(min(_CURVATURE_PASSES, self._spec.num_iterations // 4), 1)
        sums = {name: torch.zeros(self._state.parameters[name].values.shape, device=self._device) for name in weights}
        for chosen in self._minibatches(passes):
            leaves = {name: movable.value().requires_grad_() for name, movable in weights.items()}
            made = self._network(self._data.inputs(chosen), {**present, **leaves})
            with torch.no_grad():
                signs = torch.empty_like(made).bernoulli_(0.5, generator=self._random).mul_(2.0).sub_(1.0)
                signs *= self._network.limit(made) == made
            factor = 2.0 * made.shape[self._axis] / made.numel()
            for name, gradient in zip(leaves, torch.autograd.grad(made, list(leaves.values()), signs), strict=True):
                sums[name] += gradient.square() * (factor / passes)
        for name, movable in weights.items():
            movable.dampen(sums[name])

    def _is_separable(self) -> bool:
        """True if the best can be taken channel by channel: no scale of several channels moves."""
        return channels_are_independent(self._state) and not self._settings.moves_scales

    def _is_rounded(self, name: str) -> bool:
        parameter = self._state.parameters[name]
        return parameter.kind == "weight" and parameter.grid is not None

    def _step(
        self,
        movables: Mapping[str, Movable],
        present: Mapping[str, Tensor],
        chosen: Tensor,
        regularizer: tuple[float, float],
    ) -> None:
        leaves = {name: movable.value().requires_grad_() for name, movable in movables.items()}
        inputs = self._data.inputs(chosen, self._spec.drop_ratio, self._random)
        target = self._data.target(chosen)
        made = self._network(inputs, {**present, **leaves})
        with torch.no_grad():
            error = self._network.limit(made).sub(target)
        # The loss is sum((made - target)^2) over channels, the mean over samples and positions: its derivative by hand.
        factor = 2.0 * target.shape[self._axis] / target.numel()
        gradients = torch.autograd.grad(made, list(leaves.values()), error)
        for movable, gradient in zip(movables.values(), gradients, strict=True):
            # Images with their channels last give weights such gradients, and Adam goes through memory as it lies.
            movable.absorb(gradient.contiguous().mul_(factor), *regularizer)

    def _minibatches(self, total: int) -> Iterator[Tensor]:
        """``total`` times the numbers of ``batch_size`` samples; all samples come equally often."""
        random = np.random.default_rng(self._seed)
        count = self._data.count
        size = min(self._spec.batch_size, count)
        waiting = np.empty(0, np.int64)
        for _ in range(total):
            while len(waiting) < size:
                waiting = np.concatenate([waiting, random.permutation(count)])
            yield torch.from_numpy(waiting[:size])
            waiting = waiting[size:]

    @torch.no_grad()
    def _errors(self, values: Mapping[str, Tensor], limit: int | None = None) -> np.ndarray:
        """float64 [channels]: sum of squared errors over all samples, or the first ``limit``."""
        total: Tensor | None = None
        last = self._data.count if limit is None else min(limit, self._data.count)
        size = max(1, _EVALUATION_ELEMENTS // max(self._data.elements, 1))
        for start in range(0, last, size):
            self._check()
            chosen = torch.arange(start, min(start + size, last))
            made = self._network.limit(self._network(self._data.inputs(chosen), values))
            squares = made.sub_(self._data.target(chosen)).square_().movedim(self._axis, -1)
            sums = squares.reshape(-1, squares.shape[-1]).sum(dim=0, dtype=torch.float64)
            total = sums if total is None else total + sums
        return np.zeros(1) if total is None else total.cpu().numpy()

    def _result(self, results: Mapping[str, ParameterResult], before: float, after: float, steps: int) -> BlockResult:
        integers, values, scales = {}, {}, {}
        for name, result in results.items():
            parameter = self._state.parameters[name]
            if np.array_equal(result.present, parameter.present):
                continue
            if parameter.kind == "weight" and result.integers is not None:
                integers[name] = result.integers
            elif result.values is not None:
                values[name] = result.values
            if result.scale is not None:
                scales[name] = result.scale
        return BlockResult(before, after, integers, values, scales, steps)


def _present(parameter: BlockParameter) -> ParameterResult:
    present, grid = parameter.present, parameter.grid
    if isinstance(grid, IntegerGrid):
        return ParameterResult(present, grid.quantize(present), present)
    return ParameterResult(present, None, parameter.values)


class _Mean:
    """The mean of the variables over the last half of the steps: what is left when their wavering is taken off.

    Averaging the steps of a descent (Polyak and Juditsky 1992) gives a second candidate for nothing.
    """

    def __init__(self, variables: list[Tensor], total: int) -> None:
        self._variables = variables
        self._begin = total // 2
        self._means: list[Tensor] = []

    @torch.no_grad()
    def update(self, step: int) -> None:
        if step <= self._begin:
            return
        if not self._means:
            self._means = [variable.detach().clone() for variable in self._variables]
        for mean, variable in zip(self._means, self._variables, strict=True):
            mean.lerp_(variable, 1.0 / (step - self._begin))

    @torch.no_grad()
    def take(self) -> bool:
        for variable, mean in zip(self._variables, self._means, strict=False):
            variable.copy_(mean)
        return bool(self._means)


class _Plateau:
    """Tells when the error on the first samples no longer falls; ``finish`` steps are still to be taken then."""

    probe = 32
    _checks = 20
    _patience = 3
    _least_gain = 0.01

    def __init__(self, spec: Spec, settings: GradientSettings) -> None:
        self._every = max(spec.num_iterations // self._checks, 1)
        self._begin = settings.warm_start * spec.num_iterations
        self.finish = int(settings.finish * spec.num_iterations)
        self._best = math.inf
        self._mark = math.inf
        self._without = 0

    def is_due(self, step: int) -> bool:
        return step % self._every == 0

    def is_best(self, error: float) -> bool:
        if error < self._mark * (1.0 - self._least_gain):
            self._mark, self._without = error, 0
        else:
            self._without += 1
        best = error < self._best
        self._best = min(error, self._best)
        return best

    def is_over(self, step: int) -> bool:
        return step > self._begin and self._without >= self._patience
