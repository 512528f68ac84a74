"""What the engine knows of an operator stands in its record; names stand elsewhere only where code is about that one.

So a new activation function or normalization touches its record and the targets that compute it, and nothing else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable

import onnx

from tests.support.source import trees
from worker.quantizer.ops.table import Family, named

# The records, and what each target computes.
ROOMS = ("worker/quantizer/ops/", "worker/quantizer/plan/targets/")
# Torch forms by operator, undoing of quantized ones by operator.
TABLES_BY_OPERATOR = ("worker/quantizer/autodiff/", "worker/quantizer/preparation/passes/dequantizing/")
NAMES = frozenset(schema.name for schema in onnx.defs.get_all_schemas_with_history())
FAMILIES = (Family.ACTIVATION, Family.SOFTMAX, Family.NORMALIZATION, Family.RECURRENT)

_LIMITS = "moves the limits of a Relu or Clip"
_REWRITES = "finds or makes these very operators"
_SLOPES = "PRelu reads a tensor of slopes"
# By file: which activation functions, normalizations and recurrent layers it names, and why.
MAY_NAME = {
    "equalization/bias_correction.py": ({"Clip", "LeakyRelu", "PRelu", "Relu"}, "has their inverse in numpy"),
    "equalization/cross_layer.py": ({"Relu"}, _LIMITS),
    "equalization/channel_scaling.py": ({"Clip", "Relu"}, _LIMITS),
    "equalization/channel_graph.py": ({"PRelu"}, _SLOPES),
    "equalization/stand_ins.py": ({"Sigmoid"}, "fits what stands for it in numpy"),
    "fallback/regions.py": ({"Softmax"}, "tells attention by it"),
    "finetune/gradient/network.py": ({"LayerNormalization"}, "its parameters may have more than one axis"),
    "graph/values.py": ({"Relu"}, "has no limits among its inputs"),
    "modes/dynamic.py": ({"LSTM"}, "writes DynamicQuantizeLSTM"),
    "numerics/emission.py": ({"Clip"}, "writes it"),
    "plan/build.py": ({"PRelu"}, _SLOPES),
    "plan/candidates.py": ({"Clip", "PRelu"}, "forms of them that no target computes"),
    "plan/parameters.py": ({"PRelu"}, _SLOPES),
    "plan/rules/functions.py": ({"Sigmoid", "Tanh"}, "functions written out with them"),
    "plan/rules/heads.py": ({"Softmax"}, "tells a mean over bins by it"),
    "plan/rules/shifts.py": ({"HardSigmoid", "LeakyRelu", "Sigmoid"}, "the DPU shifts at them in ways of their own"),
    "refine/functions.py": (
        {"Elu", "HardSigmoid", "HardSwish", "LeakyRelu", "Sigmoid", "Softplus", "Swish", "Tanh"},
        "has them in numpy",
    ),
    "search/recipes.py": ({"LayerNormalization"}, "tells transformers by it"),
    "preparation/passes/replacing.py": ({"Clip", "Relu"}, _REWRITES),
    "preparation/passes/dequantize.py": ({"Clip", "Relu"}, "reports what it has put back"),
    "preparation/passes/activations.py": ({"Clip", "Gelu", "HardSigmoid", "HardSwish", "Relu", "Tanh"}, _REWRITES),
    "preparation/passes/opset.py": ({"GroupNormalization"}, "its parameters changed with opset 21"),
    "preparation/passes/norms.py": ({"Clip", "InstanceNormalization", "LayerNormalization"}, _REWRITES),
    "preparation/affine.py": ({"Clip"}, "never negative by its lower limit"),
    "refine/values.py": ({"Clip"}, "guards a division by its lower limit"),
}
# Three operators and more in one collection, which is no fact of each: by file, why.
MAY_COLLECT = {
    "emit/between.py": "behind which one optimization of onnxruntime's puts pairs",
    "emit/float16.py": "what reads any type",
    "equalization/bias_correction.py": "inverses in numpy, by operator",
    "equalization/observed_channels.py": "between a root and the factor that it gives",
    "evaluation/decisions.py": "between which a value is the same but for rounding",
    "plan/stored_weights.py": "what may stand between a table of scales and its product",
    "plan/rules/functions.py": "by which operator a function written out is found",
    "preparation/passes/activations.py": "operators of a GELU or a HardSwish that is written out",
    "preparation/passes/constants.py": "the cost of products, by operator",
    "preparation/passes/opset.py": "whose rule of old in onnx knows no axes from the end",
    "refine/functions.py": "activation functions in numpy, by operator",
    "refine/values.py": "by which a network guards against 0",
    "report/layers.py": "the pairs that emission writes",
}


def strings(nodes: Iterable[ast.AST | None]) -> set[str]:
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def collected(node: ast.AST) -> set[str]:
    """Operators in a tuple, a list, a set, or among the keys of a dict."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return strings(node.elts) & NAMES
    return strings(node.keys) & NAMES if isinstance(node, ast.Dict) else set()


def engine() -> dict[str, tuple[ast.AST, ...]]:
    """Files of the engine outside the records and the tables by operator, by their path in it."""
    start = "worker/quantizer/"
    return {
        name.removeprefix(start): tree
        for name, tree in trees("worker").items()
        if name.startswith(start) and not name.startswith((*ROOMS, *TABLES_BY_OPERATOR))
    }


def test_functions_and_normalizations_are_named_only_where_code_is_about_that_one() -> None:
    known = set(named(lambda record: record.family in FAMILIES))
    found = {name: words for name, tree in engine().items() if (words := strings(tree) & known)}
    assert found == {name: words for name, (words, _) in MAY_NAME.items()}


def test_facts_of_operators_are_collected_in_their_records() -> None:
    found = {name for name, tree in engine().items() if any(len(collected(node)) > 2 for node in tree)}
    assert found == set(MAY_COLLECT)


def test_every_collection_is_seen() -> None:
    for source, count in (
        ('X = ("Relu", "Tanh", "Elu")', 3),
        ('X = frozenset({"Relu", "Tanh"})', 2),
        ('X = {"Relu": 1, **Y, "Tanh": 2}', 2),
        ('X = ["relu", "words"]', 0),
    ):
        assert max(len(collected(node)) for node in ast.walk(ast.parse(source))) == count, source
