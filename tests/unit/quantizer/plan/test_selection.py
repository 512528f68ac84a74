"""include and exclude: who is meant, who is left, and what is said when nobody is."""

from __future__ import annotations

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


def quantized_names(**settings: object) -> set[str]:
    plan = plan_for(network(), config(**settings))[1]
    return {name for name, entry in plan.nodes.items() if entry.quantized}


def reasons(**settings: object) -> dict[str, str | None]:
    nodes = plan_for(network(), config(**settings))[1].nodes
    return {name: entry.reason and entry.reason.words for name, entry in nodes.items()}


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


def test_everything_is_quantized_without_selectors() -> None:
    assert quantized_names() == {"stem", "act", "body", "pool", "Flatten_5", "dense"}


def test_exclude_by_node() -> None:
    assert quantized_names(exclude=[{"node": "stem"}]) == {"body", "pool", "Flatten_5", "dense"}
    assert reasons(exclude=[{"node": "stem"}])["stem"] == "excluded by node 'stem'"
    assert reasons(exclude=[{"node": "stem"}])["act"] == "no quantized node before it takes Relu in"


def test_exclude_by_operator() -> None:
    assert quantized_names(exclude=[{"op_type": "Conv"}]) == {"dense"}
    assert reasons(exclude=[{"op_type": "Conv"}])["body"] == "excluded by op_type 'Conv'"


def test_include_by_node() -> None:
    assert quantized_names(include=[{"node": "body"}]) == {"body"}
    assert reasons(include=[{"node": "body"}])["stem"] == "not named by include"


def test_include_by_operator() -> None:
    assert quantized_names(include=[{"op_type": "Conv"}, {"op_type": "Relu"}]) == {"stem", "act", "body"}


def test_exclude_wins_over_include() -> None:
    assert quantized_names(include=[{"op_type": "Conv"}], exclude=[{"node": "stem"}]) == {"body"}


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm"])
def test_a_matmul_that_became_gemm_is_known_by_either_name(op_type: str) -> None:
    assert reasons(exclude=[{"op_type": op_type}])["dense"] == f"excluded by op_type {op_type!r}"
    assert quantized_names(include=[{"op_type": op_type}]) == {"dense"}
    assert check(exclude=[{"op_type": op_type}]) == []


@pytest.mark.parametrize(
    ("selector", "pointer", "message"),
    [
        ({"node": "sten"}, "/config/exclude/0/node", "the model has no node 'sten'; did you mean 'stem'?"),
        ({"op_type": "Conf"}, "/config/exclude/0/op_type", "the model has no operator 'Conf'; did you mean 'Conv'?"),
        ({"op_type": "conv"}, "/config/exclude/0/op_type", "the model has no operator 'conv'; did you mean 'Conv'?"),
        ({"node": "zzzzzz"}, "/config/exclude/0/node", "the model has no node 'zzzzzz'"),
        ({"node": "Conv"}, "/config/exclude/0/node", "the model has no node 'Conv'"),
    ],
)
def test_a_selector_that_nobody_fits_is_an_error(selector: dict[str, str], pointer: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        check(exclude=[selector])
    (problem,) = caught.value.errors
    assert problem.pointer == pointer
    assert problem.code == "selector-unmatched"
    assert problem.message == message


def test_every_bad_selector_is_named() -> None:
    with pytest.raises(InvalidConfigError) as caught:
        check(include=[{"node": "stem"}, {"node": "nobody"}], exclude=[{"op_type": "Nothing"}])
    assert [problem.pointer for problem in caught.value.errors] == [
        "/config/include/1/node",
        "/config/exclude/0/op_type",
    ]


def test_selectors_of_folded_nodes_are_accepted_with_a_note() -> None:
    notes = check(exclude=[{"node": "bn"}, {"op_type": "BatchNormalization"}, {"node": "stem"}, {"node": "bias"}])
    assert notes == [
        "exclude node 'bn' has no effect: preparation folds it into other nodes",
        "exclude op_type 'BatchNormalization' has no effect: preparation folds it into other nodes",
        "exclude node 'bias' has no effect: preparation folds it into other nodes",
    ]
