"""The quantized network in torch: the prepared graph with the grids of its plan, all that moves being a parameter.

Its forward pass makes what the emitted model makes, tensor by tensor: a planned activation is rounded where ``emit``
puts its Q/DQ pair, and read rounded by the nodes that read the pair's result there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from worker.quantizer.autodiff.grids import TorchGrid
from worker.quantizer.autodiff.program import Program, as_tensor
from worker.quantizer.graph.values import node_name
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.refine.draft import Draft
from worker.quantizer.training.operands import (
    BiasRounding,
    ChannelStatistics,
    FoldedConvolution,
    Normalization,
    OperandNames,
    TrainedParameter,
    folded_convolutions,
)
from worker.quantizer.training.quantizers import LearnedGrid

# Parameters and modules by the names that a graph gives them.

Member = TypeVar("Member", bound=nn.Parameter | nn.Module)


class Tree(nn.Module, Generic[Member]):
    """Members by any name; ``named_parameters`` tells them by that name, dots and all.

    A name with dots becomes modules within modules, as in the network that it came from. Members are looked up where
    they stand, so that whatever is put in the place of a parameter (``functional_call``, ``load_state_dict`` with
    ``assign``) is what is found.
    """

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[str, tuple[nn.Module, str]] = {}

    def put(self, name: str, member: Member, *, at: str | None = None) -> None:
        """Add a member.

        ``at`` is the name that ``named_parameters`` tells; None: ``name``.

        Raises:
            ValueError: the name is taken.
        """
        if name in self._places:
            raise ValueError(f"{name!r} is there already")
        holder: nn.Module = self
        *path, last = [part or "_" for part in (at or name).split(".")]
        for part in path:
            found = holder._modules.get(part)
            if found is None and hasattr(holder, part):
                holder, last = self, (at or name).replace(".", "_")
                break
            if found is None:
                found = nn.Module()
                holder.add_module(part, found)
            holder = found
        if hasattr(holder, last) or (holder is not self and isinstance(holder, Tree)):
            holder, last = self, (at or name).replace(".", "_")
        last = free_name(holder, last)
        _register(holder, last, member)
        self._places[name] = (holder, last)

    def graft(self, onto: nn.Module) -> None:
        """Let the members stand in ``onto`` instead; a name that is taken there gets underscores at its end."""
        own: dict[str, Member] = {**self._modules, **self._parameters}  # type: ignore[dict-item]
        moved = {}
        for last, member in own.items():
            delattr(self, last)
            moved[last] = free_name(onto, last)
            _register(onto, moved[last], member)
        for name, (holder, last) in self._places.items():
            if holder is self:
                self._places[name] = (onto, moved[last])

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __getitem__(self, name: str) -> Member:
        holder, last = self._places[name]
        member: Member = getattr(holder, last)
        return member

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)


def free_name(holder: nn.Module, name: str) -> str:
    """``name``, with underscores at its end as long as ``holder`` has an attribute of that name."""
    while hasattr(holder, name):
        name += "_"
    return name


def _register(holder: nn.Module, name: str, member: Member) -> None:
    if isinstance(member, nn.Parameter):
        holder.register_parameter(name, member)
    else:
        holder.add_module(name, member)


class Twin(nn.Module):
    """The network of a draft as a module: ``forward`` takes inputs and gives outputs, both by name.

    ``wanted`` are names of tensors to give, None: the outputs. With ``learn_zeros`` zero points of asymmetric
    activations and weights move.

    Raises:
        NotDifferentiableError: an operator has no derivative here.
    """

    def __init__(
        self,
        draft: Draft,
        *,
        device: torch.device,
        wanted: Collection[str] | None = None,
        learn_zeros: bool = False,
    ) -> None:
        super().__init__()
        self._draft, self._device = draft, device
        self.rounding = True  # False: weights and activations pass as they are, as in the float network
        self._operands = OperandNames(draft.graph, draft.plan)
        self._program = Program(
            draft.graph, device=device, wanted=wanted, read=self._operands.key, named=self._operands.result
        )
        self.masters: Tree[nn.Parameter] = Tree()  # the float values of all that is trained, by initializer
        self.weight_grids: Tree[LearnedGrid] = Tree()  # the learned grids of weights on integers, by initializer
        self.activation_grids: Tree[LearnedGrid] = Tree()  # those of activations, by source
        self.norms: Tree[Normalization] = Tree()  # of what ``unfold`` has given one, by the initializer of the weight
        self.norms_frozen = False  # True: normalize by the running statistics even in training mode
        self._unfolded: dict[str, FoldedConvolution] = {}  # by the name of the convolution's result
        self._norm_of: dict[str, str] = {}  # key of a weight or a bias -> name of its normalization
        self._fixed: dict[str, TorchGrid] = {}
        self._shared: dict[str, str] = {}  # activation -> what its learned grid is called
        self._channels: dict[str, Tensor] = {}
        self._constants = {key: as_tensor(np.array(array), device) for key, array in self._operands.moved.items()}
        for parameter in self._operands.held.values():
            self._hold(parameter, learn_zeros)
        for tensor in draft.plan.activations:
            self._hold_activation(tensor, learn_zeros)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the network's inputs that it needs."""
        return self._program.inputs

    def forward(self, feeds: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the quantized network.

        ``feeds`` are by input name, [n, ...]. Returns the wanted tensors by name, rounded where the emitted model hands
        them out rounded.
        """
        given = {**self._constants, **feeds}
        held = self._operands.held.items()
        weights = {key: self._weight(parameter) for key, parameter in held if parameter.bias is None}
        biases = {key: self._bias(parameter, parameter.bias) for key, parameter in held if parameter.bias is not None}
        given.update(weights)
        given.update(biases)
        if self._by_batch:
            shifts = [layer.bias for layer in self._unfolded.values()]
            given.update({parameter.key: torch.zeros_like(self.masters[parameter.name]) for parameter in shifts})
        for name in self._program.inputs:
            self._round(name, feeds[name], given)
        return self._program(given, self._round)

    @torch.no_grad()
    def observe(self, feeds: Mapping[str, Tensor], see: Callable[[str, Tensor], None]) -> None:
        """Run the network without rounding and show every activation that has a grid.

        ``see`` gets names and values.
        """

        def made(name: str, tensor: Tensor, known: dict[str, Tensor]) -> None:
            key = self._operands.rounded(name)
            if key is not None:
                see(name, tensor)
                known[key] = tensor

        given = {**self._constants, **feeds}
        given.update({key: self._folded(parameter) for key, parameter in self._operands.held.items()})
        for name in self._program.inputs:
            made(name, feeds[name], given)
        self._program(given, made)

    @property
    def normalizable(self) -> list[FoldedConvolution]:
        """The convolutions that ``unfold`` may give a normalization."""
        return folded_convolutions(self._operands.held)

    def unfold(self, moments: Mapping[str, ChannelStatistics]) -> None:
        """Give convolutions a normalization: by each batch in training mode, else by running statistics.

        The twin is then in evaluation mode. A bias is trained as part of its normalization; its master stays.

        ``moments`` are of what they make in the float network, by its name.
        """
        for layer in self.normalizable:
            if layer.result in moments:
                name, bias = layer.weight.name, self.masters[layer.bias.name].requires_grad_(False)
                self.norms.put(name, Normalization(layer, moments[layer.result], bias))
                self._unfolded[layer.result] = layer
                self._norm_of |= {layer.weight.key: name, layer.bias.key: name}
        self.eval()

    def write(self) -> Draft:
        """The draft with all that was trained in its plan: what the twin computes is what is emitted.

        Grids that the target cannot work with are left for ``Draft.on_target``.
        """
        plan = self._draft.plan.copy()
        parameters = Parameters(self._draft.graph, plan)
        for tensor, activation in plan.activations.items():
            if isinstance(activation.quantization, IntegerGrid):
                grid = self.activation_grids[self._shared[tensor]].grid()
                kept = activation.quantization
                activation.quantization = replace(grid, symmetric=kept.symmetric, reduce_range=kept.reduce_range)
        for parameter in self._weights():
            entry, values = plan.weights[parameter.name], self._values(parameter)
            if parameter.name in self.weight_grids:
                grid = self.weight_grids[parameter.name].grid()
                entry.quantization, entry.integers = grid, grid.quantize(values)
            plan.moved[parameter.name] = values
        for parameter in self._operands.held.values():
            if parameter.weight is None:
                parameters.put(parameter.node, parameter.index, self._values(parameter), refit=True)
        return replace(self._draft, plan=plan)

    def follow(self, draft: Draft) -> None:
        """Take over grids that something else has moved since ``write``, such as the rules of a target.

        ``draft`` is made of what ``write`` gave.
        """
        for tensor, activation in draft.plan.activations.items():
            if isinstance(activation.quantization, IntegerGrid):
                self.activation_grids[self._shared[tensor]].follow(activation.quantization)
        for parameter in self._weights():
            grid = draft.plan.weights[parameter.name].quantization
            if isinstance(grid, IntegerGrid):
                self.weight_grids[parameter.name].follow(grid)
        self._operands.renew_biases(draft.plan)

    def fixed_scales(self) -> Tensor:
        """The scales of all grids that are not learned, flat: they are no part of a state."""
        scales = (getattr(grid, "scale", None) for grid in self._fixed.values())
        flat = [scale.reshape(-1) for scale in scales if scale is not None]
        return torch.cat([torch.zeros(0, device=self._device), *flat])

    def move(self, device: torch.device) -> None:
        """Let what is no parameter and no buffer follow these to another device."""
        self._device = device
        self._program.move(device)
        for held in (self._channels, self._constants):
            held.update({name: tensor.to(device) for name, tensor in held.items()})
        for grid in self._fixed.values():
            grid.move(device)

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes whose parameters it holds."""
        return tuple(dict.fromkeys(node_name(parameter.node) for parameter in self._operands.held.values()))

    def scale_parameters(self) -> Iterator[nn.Parameter]:
        """Growth of scales, and zero points that are learned."""
        for tree in (self.weight_grids, self.activation_grids):
            yield from tree.parameters()

    def weights_on_grids(self) -> Iterator[tuple[str, nn.Parameter, LearnedGrid]]:
        """Weights on integer grids: initializer, master values, grid."""
        for parameter in self._weights():
            if parameter.name in self.weight_grids:
                yield parameter.name, self.masters[parameter.name], self.weight_grids[parameter.name]

    def factor(self, name: str) -> Tensor:
        """What the master of a weight is multiplied by before it is rounded; broadcasts against it."""
        return self.norms[name].factor() if name in self.norms else torch.ones((), device=self._device)

    @property
    def _by_batch(self) -> bool:
        return self.training and not self.norms_frozen

    def _folded(self, parameter: TrainedParameter) -> Tensor:
        """What is rounded: the master, with the running statistics of its normalization folded in."""
        master: Tensor = self.masters[parameter.name]
        name = self._norm_of.get(parameter.key)
        if name is None:
            return master
        norm = self.norms[name]
        return master * norm.factor() if parameter.index == 1 else norm.bias().reshape(master.shape)

    def _hold(self, parameter: TrainedParameter, learn_zeros: bool) -> None:
        now = parameter.now
        if parameter.name not in self.masters:
            values = as_tensor(np.array(now.unrounded, np.float32), self._device)
            self.masters.put(parameter.name, nn.Parameter(values), at=self._operands.title(parameter))
        if parameter.weight is None or now.grid is None:
            return
        if isinstance(now.grid, IntegerGrid):
            if parameter.name not in self.weight_grids:
                moves = learn_zeros and not parameter.weight.spec.symmetric
                grid = LearnedGrid(now.grid, now.scale, learn_zero=moves, device=self._device)
                self.weight_grids.put(parameter.name, grid)
        else:
            self._fixed[parameter.key] = TorchGrid(now.grid, now.values.shape, self._device)

    def _hold_activation(self, tensor: str, learn_zeros: bool) -> None:
        entry = self._draft.plan.activations[tensor]
        grid = entry.quantization
        if isinstance(grid, IntegerGrid):
            key = self._shared[tensor] = self._operands.source(tensor)
            if key not in self.activation_grids:
                moves = learn_zeros and not entry.spec.symmetric
                learned = LearnedGrid(
                    grid.at_run_time(), entry.spec.scale, learn_zero=moves, device=self._device, of_samples=True
                )
                self.activation_grids.put(key, learned, at=self._operands.maker(key))
        elif grid is not None:
            self._fixed[tensor] = TorchGrid(grid, (-1,) * self._operands.rank(tensor), self._device)

    def _round(self, name: str, tensor: Tensor, known: dict[str, Tensor]) -> None:
        if self._by_batch and name in self._unfolded:
            tensor = known[name] = self.norms[self._unfolded[name].weight.name](tensor)
        key = self._operands.rounded(name)
        if key is None:
            return
        if not self.rounding:
            known[key] = tensor
            return
        fixed = self._fixed.get(name)
        if fixed is not None:
            known[key] = fixed.through(tensor)
        else:
            known[key] = self.activation_grids[self._shared[name]](tensor)

    def _weight(self, parameter: TrainedParameter) -> Tensor:
        master = self._folded(parameter)
        if not self.rounding:
            return master
        if parameter.key in self._fixed:
            return self._fixed[parameter.key].through(master)
        on_grid = parameter.weight is not None and parameter.name in self.weight_grids
        rounded: Tensor = self.weight_grids[parameter.name](master) if on_grid else master
        return rounded

    def _bias(self, parameter: TrainedParameter, how: BiasRounding) -> Tensor:
        """A bias moves straight through its rounding, whose steps are far finer than those of weights."""
        master = self._folded(parameter)
        if not self.rounding:
            return master
        with torch.no_grad():
            flat = master.reshape(-1)
            low, high = how.grid.limits
            kind = torch.float64 if how.grid.dtype == "int32" else torch.float32
            if how.source is None or how.weight is None:
                scale = torch.from_numpy(np.atleast_1d(how.grid.scale)).to(flat.device, kind)
            else:
                by_channel = self.weight_grids[how.weight].scale().reshape(-1).double()[self._index(parameter, how)]
                scale = (self.activation_grids[how.source].scale().double() * by_channel).float().to(kind)
            steps = torch.round(flat.to(kind) / scale).clamp(low, high)
            rounded = (steps * scale).float().reshape(master.shape)
        return master + (rounded - master).detach()

    def _index(self, parameter: TrainedParameter, how: BiasRounding) -> Tensor:
        if parameter.key not in self._channels:
            self._channels[parameter.key] = torch.from_numpy(np.asarray(how.scale_of_channel)).to(self._device)
        return self._channels[parameter.key]

    def _weights(self) -> Iterator[TrainedParameter]:
        seen = set()
        for parameter in self._operands.held.values():
            if parameter.weight is not None and parameter.name not in seen:
                seen.add(parameter.name)
                yield parameter

    def _values(self, parameter: TrainedParameter) -> np.ndarray:
        return np.array(self._folded(parameter).detach().cpu().numpy(), np.float32)
