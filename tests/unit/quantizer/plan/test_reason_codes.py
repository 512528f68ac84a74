"""Codes and hints of nodes that stay in float, as an inspection tells them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.inspection import NodeInspection
from tests.unit.quantizer.toolbox import config, make_model, normal
from worker.quantizer.inspection import inspect_nodes

WEIGHTS = {"w": normal(4, 4), "bad": np.full((4, 4), np.nan, np.float32), "scale": normal(4), "shift": normal(4)}


def inspected(call: str, **settings: object) -> NodeInspection:
    result = "int64[2]" if call.startswith("Shape") else "float[N,4]"
    text = f"(float[N,4] x, float[4,4] given, bool[N,4] c) => ({result} y) {{ [it] y = {call} }}"
    model = make_model(text, WEIGHTS)
    nodes, _ = inspect_nodes(ir.from_proto(model), config(**settings))
    return next(node for node in nodes if node.name == "it")


@pytest.mark.parametrize(
    ("call", "code", "hint", "by_design"),
    [
        ("Where(c, x, x)", "no-integer-kernel", "Replace the operator", False),
        ("Shape(x)", "shape-arithmetic", "it computes shapes", True),
        ("LayerNormalization(x, scale, shift)", "normalization", "Use BatchNormalization", False),
        ("Softmax(x)", "softmax", "Nothing", True),
        ("Gemm(x, given)", "weight-not-constant", "Fold the weight", False),
        ("MatMul(x, bad)", "weight-not-finite", "training fault", False),
        ("Exp(x)", "wide-result", None, False),
        ("Flatten(x)", "not-fed-by-quantized", "Nothing: it lies where the network is float", True),
        ("MatMul(x, w)", None, None, False),
    ],
)
def test_a_node_in_float_has_a_code_and_a_hint(call: str, code: str | None, hint: str | None, by_design: bool) -> None:
    found = inspected(call)
    assert (found.reason_code, found.by_design, found.quantized) == (code, by_design, code is None)
    assert (found.reason is None) == (code is None)
    assert (hint is None and found.hint is None) or (hint is not None and hint in (found.hint or ""))


def test_what_the_user_leaves_out_is_told_from_what_cannot_be() -> None:
    assert inspected("MatMul(x, w)", exclude=[{"node": "it"}]).reason_code == "excluded"
    assert inspected("Gemm(x, w)", include=[{"op_type": "Gemm"}]).reason_code is None
    assert inspected("MatMul(x, w)", mode="dynamic").reason_code is None
    assert inspected("Relu(x)", mode="dynamic").reason_code == "not-dynamic"
    assert inspected("Relu(x)", mode="weights_only").reason_code == "not-linear"
