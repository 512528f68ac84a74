"""include and exclude: which nodes the user wants quantized."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import onnx_ir as ir

from service.contracts.config import NodeSelector, OpTypeSelector, QuantizationConfig, Selector
from service.contracts.errors import FieldProblem, InvalidConfigError
from worker.quantizer.graph.values import node_name


class Selection:
    """Answers, node by node, why the user wants it left in float.

    Args:
        config: whose include and exclude count.
        op_types: operators by node name as uploaded; MatMul and Add may have become Gemm since.
    """

    def __init__(self, config: QuantizationConfig, op_types: Mapping[str, str]) -> None:
        self._config = config
        self._op_types = op_types

    def reason(self, node: ir.Node) -> str | None:
        """None if the node may be quantized, else why not."""
        for selector in self._config.exclude:
            if self._matches(selector, node):
                return f"excluded by {_words(selector)}"
        if self._config.include and not any(self._matches(selector, node) for selector in self._config.include):
            return "not named by include"
        return None

    def _matches(self, selector: Selector, node: ir.Node) -> bool:
        if isinstance(selector, NodeSelector):
            return node_name(node) == selector.node
        if isinstance(selector, OpTypeSelector):
            return selector.op_type in (node.op_type, self._op_types.get(node_name(node)))
        raise NotImplementedError(type(selector).__name__)


_Nodes = Iterable[tuple[str | None, str]]


def check_selectors(config: QuantizationConfig, uploaded: _Nodes, prepared: _Nodes) -> list[str]:
    """Raise if a selector matches no node.

    Args:
        config: whose include and exclude are checked.
        uploaded: (name, op_type) of the nodes of the model as uploaded.
        prepared: the same of the prepared model, by their old op_type as well; a match in either will do.

    Returns:
        A note for every selector that matches only nodes which preparation folded away.

    Raises:
        InvalidConfigError: one problem per selector, naming the nearest node or operator.
    """
    left = _names_and_op_types(prepared)
    known = {kind: left[kind] | before for kind, before in _names_and_op_types(uploaded).items()}
    problems, notes = [], []
    for word, selectors in (("include", config.include), ("exclude", config.exclude)):
        for k, selector in enumerate(selectors):
            kind, wanted = _key(selector)
            if wanted not in known[kind]:
                near = _nearest(wanted, known[kind])
                message = f"the model has no {'node' if kind == 'node' else 'operator'} {wanted!r}"
                message += f"; did you mean {near[0]!r}?" if near else ""
                problems.append(
                    FieldProblem(pointer=f"/config/{word}/{k}/{kind}", code="selector-unmatched", message=message)
                )
            elif wanted not in left[kind]:
                notes.append(f"{word} {_words(selector)} has no effect: preparation folds it into other nodes")
    if problems:
        raise InvalidConfigError("; ".join(p.message for p in problems[:5]), errors=tuple(problems))
    return notes


def _names_and_op_types(nodes: _Nodes) -> dict[str, set[str]]:
    pairs = list(nodes)
    return {"node": {name for name, _ in pairs if name}, "op_type": {op_type for _, op_type in pairs}}


def _nearest(wanted: str, known: Iterable[str]) -> list[str]:
    """The known name that looks most like ``wanted``, letter case aside; none if nothing does."""
    folded = {name.casefold(): name for name in sorted(known)}
    return [folded[name] for name in difflib.get_close_matches(wanted.casefold(), folded, n=1, cutoff=0.4)]


def _key(selector: Selector) -> tuple[str, str]:
    if isinstance(selector, NodeSelector):
        return "node", selector.node
    if isinstance(selector, OpTypeSelector):
        return "op_type", selector.op_type
    raise NotImplementedError(type(selector).__name__)


def _words(selector: Selector) -> str:
    kind, wanted = _key(selector)
    return f"{kind} {wanted!r}"
