"""include and exclude: who is meant, who is left, and what is said when nobody is."""

from __future__ import annotations

from typing import Any

import pytest

from service.contracts.errors import InvalidConfigError
from tests.unit.quantizer.toolbox import (
    batchnorm_text,
    batchnorm_weights,
    config,
    make_model,
    normal,
    plan_for,
    prepare_proto,
)
from worker.quantizer.plan.matching import Matcher
from worker.quantizer.plan.selection import check_selectors


def network() -> object:
    return make_model(
        "(float[N,3,9,9] x) => (float[N,5] y) { [stem] a = Conv(x, w) "
        f"{batchnorm_text('a', 'c')} [act] r = Relu(c) [body] d = Conv(r, w2) [pool] p = GlobalAveragePool(d) "
        "f = Flatten(p) [dense] m = MatMul(f, k) [bias] y = Add(m, b) }",
        {
            "w": normal(4, 3, 3, 3),
            "w2": normal(4, 4, 3, 3),
            "k": normal(4, 5),
            "b": normal(5),
            **batchnorm_weights(4),
        },
    )


def check(**settings: object) -> list[str]:
    model = network()
    prepared, _ = prepare_proto(model)
    uploaded = [(node.name, node.op_type) for node in model.graph.node]
    return check_selectors(
        config(**settings),
        [*uploaded, *prepared.op_types.items()],
        prepared.known_nodes(),
        Matcher(prepared.graph, prepared.op_types),
    )


ALL = {"stem", "act", "body", "pool", "Flatten_5", "dense"}


@pytest.mark.parametrize(
    ("settings", "quantized", "told"),
    [
        ({}, ALL, {}),
        ({"exclude": [{"node": "stem"}]}, ALL - {"stem", "act"}, {"stem": "excluded"}),
        ({"exclude": [{"op_type": "Conv"}]}, {"dense"}, {"stem": "excluded", "body": "excluded"}),
        ({"include": [{"node": "body"}]}, {"body"}, {"stem": "not-included"}),
        ({"include": [{"op_type": "Conv"}, {"op_type": "Relu"}]}, {"stem", "act", "body"}, {}),
        ({"include": [{"op_type": "Conv"}], "exclude": [{"node": "stem"}]}, {"body"}, {"stem": "excluded"}),
        # a MatMul that became Gemm is known by either name
        ({"exclude": [{"op_type": "MatMul"}]}, {"stem", "act", "body"}, {"dense": "excluded"}),
        ({"exclude": [{"op_type": "Gemm"}]}, {"stem", "act", "body"}, {"dense": "excluded"}),
        ({"include": [{"op_type": "MatMul"}]}, {"dense"}, {}),
        ({"exclude": [{"from_nodes": ["stem"], "to_nodes": ["body"]}]}, {"dense"}, {"body": "excluded"}),
    ],
)
def test_who_is_left(settings: dict[str, Any], quantized: set[str], told: dict[str, str]) -> None:
    nodes = plan_for(network(), config(**settings))[1].nodes
    assert {name for name, entry in nodes.items() if entry.quantized} == quantized
    assert {name: entry.reason.code for name, entry in nodes.items() if name in told} == told
    assert check(**settings) == []


@pytest.mark.parametrize(
    ("selector", "pointer", "message"),
    [
        ({"node": "sten"}, "/config/exclude/0/node", "no node 'sten'; did you mean 'stem'?"),
        ({"op_type": "conv"}, "/config/exclude/0/op_type", "no operator 'conv'; did you mean 'Conv'?"),
        ({"node": "zzzzzz"}, "/config/exclude/0/node", "no node 'zzzzzz'"),
        ({"node": "Conv"}, "/config/exclude/0/node", "no node 'Conv'"),
    ],
)
def test_a_selector_that_nobody_fits_is_an_error(selector: dict[str, str], pointer: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        check(include=[{"node": "stem"}, {"node": "nobody"}], exclude=[selector])
    assert [problem.pointer for problem in caught.value.errors] == ["/config/include/1/node", pointer]
    assert caught.value.errors[1].code == "selector-unmatched"
    assert caught.value.errors[1].message.endswith(message)


def test_selectors_of_folded_nodes_are_accepted_with_a_note() -> None:
    notes = check(exclude=[{"node": "bn"}, {"op_type": "BatchNormalization"}, {"node": "stem"}, {"node": "bias"}])
    assert len(notes) == 3
    for note, name in zip(notes, ("node 'bn'", "op_type 'BatchNormalization'", "node 'bias'"), strict=True):
        assert name in note and "no effect" in note
