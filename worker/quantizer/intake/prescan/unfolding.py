"""What a model holds once its functions stand in the place of their calls: a kilobyte may become billions of nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from service.contracts.errors import UnsupportedModelError
from worker.quantizer.intake.prescan.limits import (
    FREE_UNFOLDED_NODES,
    MAX_CALL_DEPTH,
    MAX_NODES,
    MAX_UNFOLDED_BYTES,
    UNFOLDED_PER_NODE,
    too_complex,
)
from worker.quantizer.intake.prescan.walk import FunctionKey, Part


@dataclass(frozen=True)
class Unfolded:
    """Of the main graph, with all functions in the place of their calls.

    Attributes:
        nodes: sub-graphs included.
        size_bytes: of what is put in the place of calls.
        depth: calls within calls.
    """

    nodes: int
    size_bytes: int
    depth: int = 0


def unfold(main: Part, functions: Mapping[FunctionKey, Part], nodes: int) -> Unfolded:
    """Count without unfolding.

    Args:
        main: the main graph.
        functions: by key.
        nodes: of the file.

    Raises:
        UnsupportedModelError: functions that call themselves.
        TooComplexError: calls nested too deep, or more nodes or bytes than may come of such a file.
    """
    known: dict[FunctionKey, Unfolded] = {}
    open_calls: list[FunctionKey] = []

    def of(part: Part) -> Unfolded:
        found = [(count, called(key)) for key, count in part.calls.items()]
        own = part.nodes - part.calls.total()
        return Unfolded(
            own + sum(count * callee.nodes for count, callee in found),
            part.size_bytes + sum(count * callee.size_bytes for count, callee in found),
            1 + max((callee.depth for _, callee in found), default=0),
        )

    def called(key: FunctionKey) -> Unfolded:
        name = key[1].decode(errors="replace")
        if key in open_calls:
            raise UnsupportedModelError(
                f"function {name!r} of domain {key[0].decode(errors='replace')!r} calls itself",
                hint="Export the model without recursive functions.",
                function=name,
            )
        if key not in known:
            if len(open_calls) >= MAX_CALL_DEPTH:
                raise too_complex("call_depth", len(open_calls) + 1, MAX_CALL_DEPTH, function=name)
            open_calls.append(key)
            known[key] = of(functions.get(key, Part()))
            open_calls.pop()
            if known[key].depth > MAX_CALL_DEPTH:
                raise too_complex("call_depth", known[key].depth, MAX_CALL_DEPTH, function=name)
        return known[key]

    for key in functions:  # also those that nothing calls: whoever inlines them goes round in circles as well
        called(key)
    whole = of(main)
    most = max(nodes, min(MAX_NODES, FREE_UNFOLDED_NODES + UNFOLDED_PER_NODE * nodes))
    if whole.nodes > most:
        raise too_complex("unfolded_nodes", whole.nodes, most)
    if whole.size_bytes > MAX_UNFOLDED_BYTES:
        raise too_complex("unfolded_bytes", whole.size_bytes, MAX_UNFOLDED_BYTES)
    return whole
