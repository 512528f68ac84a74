"""How a module is called, and what its arguments and results are called in the graph."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from quantmill.torch.errors import ExampleInputsError, ExportError
from worker.quantizer.intake.exported import free_name, place_name

# What may stand in the place of a tensor: it is written into the graph as it is.
CONSTANTS = (bool, int, float, type(None))
_INPUTS_HINT = "Give a tensor, a tuple of the positional arguments, or a dict of the keyword arguments."


@dataclass(frozen=True)
class Structure:
    """Tensors within nested containers, each with a name.

    Attributes:
        spec: the containers.
        leaves: per place: the name of the tensor that stands there, or the constant.
        is_tensor: which places hold tensors.
    """

    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]
    is_tensor: tuple[bool, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors, in their order."""
        return tuple(leaf for leaf, tensor in zip(self.leaves, self.is_tensor, strict=True) if tensor)

    def tensors(self, tree: Any) -> dict[str, Any]:
        """What stands in ``tree``, of the same containers, in the places of the tensors, by name.

        Raises:
            ValueError: other containers, or another constant than the one in the graph.
        """
        found = {}
        values = self.spec.flatten_up_to(tree)
        for leaf, tensor, value in zip(self.leaves, self.is_tensor, values, strict=True):
            if tensor:
                found[leaf] = value
            elif type(leaf) is not type(value) or leaf != value:
                raise ValueError(f"{value!r} where the model was exported with {leaf!r}")
        return found

    def tree(self, tensors: Mapping[str, Any]) -> Any:
        """The containers with ``tensors`` in their places."""
        leaves = [tensors[leaf] if tensor else leaf for leaf, tensor in zip(self.leaves, self.is_tensor, strict=True)]
        return pytree.tree_unflatten(leaves, self.spec)


class ExportCall:
    """The arguments that a module was exported with.

    Args:
        module: whose ``forward`` is called.
        example_inputs: a tensor, a tuple (or list) of positional arguments, or a dict of keyword arguments.

    Attributes:
        structure: of the arguments, by the names of the parameters.
        slots: the arguments that hold tensors, by name, in their order; what ``*args`` takes is numbered.

    Raises:
        ExampleInputsError: they are not arguments of ``forward``, or hold something that is neither a tensor nor a
            plain number.
    """

    def __init__(self, module: torch.nn.Module, example_inputs: Any) -> None:
        self._forward = inspect.signature(module.forward)
        positional, keywords = as_arguments(example_inputs)
        self._arguments = self._bound(positional, keywords)
        skipped = [name for name in self._arguments if self._is(name, inspect.Parameter.VAR_KEYWORD)]
        self.structure, self._example = _named(self._arguments, skipped=skipped)
        if not self.structure.names:
            raise ExampleInputsError("example_inputs hold no tensor", hint=_INPUTS_HINT)
        self._slots = dict(self._slotted())
        self.slots = tuple(
            name
            for name, value in self._slots.items()
            if any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors, in their order."""
        return self.structure.names

    @property
    def example(self) -> dict[str, torch.Tensor]:
        """The example's tensors by name."""
        return dict(self._example)

    def arguments(self, tensors: Mapping[str, Any]) -> inspect.BoundArguments:
        """The call with ``tensors`` in the places of the example's."""
        bound = self._forward.bind_partial()
        bound.arguments.update(self.structure.tree(tensors))
        return bound

    def from_call(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        """What another call has in the places of the tensors, by name.

        Raises:
            ExampleInputsError: it has other containers or other constants than the example.
        """
        return self._tensors(self._bound(positional, keywords))

    def from_slots(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """What stands in the places of the tensors, by name, where ``values`` are the arguments of the slots.

        Raises:
            ExampleInputsError: a slot is missing or unknown, or holds other containers than the example's.
        """
        if set(values) != set(self.slots):
            wanted, given = ", ".join(self.slots), ", ".join(map(str, values)) or "nothing"
            raise ExampleInputsError(f"the module takes {wanted}; given is {given}", hint=_INPUTS_HINT)
        filled = {**self._slots, **values}
        arguments: dict[str, Any] = {}
        for name, value in self._arguments.items():
            if self._is(name, inspect.Parameter.VAR_POSITIONAL):
                arguments[name] = tuple(filled[f"{name}_{k}"] for k in range(len(value)))
            elif self._is(name, inspect.Parameter.VAR_KEYWORD):
                arguments[name] = {key: filled[key] for key in value}
            else:
                arguments[name] = filled[name]
        return self._tensors(arguments)

    def _slotted(self) -> Iterator[tuple[str, Any]]:
        for name, value in self._arguments.items():
            if self._is(name, inspect.Parameter.VAR_POSITIONAL):
                yield from ((f"{name}_{k}", item) for k, item in enumerate(value))
            elif self._is(name, inspect.Parameter.VAR_KEYWORD):
                yield from value.items()
            else:
                yield name, value

    def _is(self, name: str, kind: Any) -> bool:
        return self._forward.parameters[name].kind is kind

    def _tensors(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self.structure.tensors(dict(arguments))
        except ValueError as error:
            raise ExampleInputsError(
                f"the call differs from the one that the model was exported with: {error}",
                hint="Only tensors may differ: everything else is written into the model. Export another one.",
            ) from None

    def _bound(self, positional: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return dict(self._forward.bind(*positional, **keywords).arguments)
        except TypeError as error:
            raise ExampleInputsError(f"forward{self._forward} cannot be called: {error}", hint=_INPUTS_HINT) from None


def as_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments; ``inputs`` is a tensor, a tuple or list, or a dict."""
    if isinstance(inputs, Mapping):
        return (), {str(name): value for name, value in inputs.items()}
    if isinstance(inputs, tuple | list):
        return tuple(inputs), {}
    return (inputs,), {}


def result_structure(result: Any) -> tuple[Structure, dict[str, torch.Tensor]]:
    """The structure of what a module returns, and its tensors by name.

    Raises:
        ExportError: it holds something that is neither a tensor nor a plain number.
    """
    single = isinstance(result, torch.Tensor)
    try:
        return _named({"output": result} if single or not isinstance(result, Mapping) else result, root=result)
    except ExampleInputsError as error:
        raise ExportError(
            f"the module returns something that an ONNX model cannot: {error.detail}",
            hint="Return tensors, in tuples, lists or dicts.",
        ) from None


def _named(tree: Any, *, skipped: Iterable[str] = (), root: Any = None) -> tuple[Structure, dict[str, torch.Tensor]]:
    """Name the tensors of ``tree`` by their places; ``root``, where given, is the tree that is described instead."""
    placed, spec = pytree.tree_flatten_with_path(tree)
    if root is not None:
        spec = pytree.tree_structure(root)
    leaves: list[Any] = []
    found: dict[str, torch.Tensor] = {}
    for path, leaf in placed:
        if isinstance(leaf, torch.Tensor):
            name = free_name(place_name(path, skipped), found)
            found[name] = leaf
            leaves.append(name)
        elif isinstance(leaf, CONSTANTS):
            leaves.append(leaf)
        else:
            word = type(leaf).__name__
            raise ExampleInputsError(
                f"{pytree.keystr(path)} is {'an' if word[:1].lower() in 'aeiou' else 'a'} {word}",
                hint="A model takes tensors; numbers and None are written into it. Convert arrays by torch.as_tensor, "
                "and compute what depends on strings outside the module.",
            )
    return Structure(spec, tuple(leaves), tuple(isinstance(leaf, torch.Tensor) for _, leaf in placed)), found
