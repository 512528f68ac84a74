"""What a config says of a training: bounds, what losses read, which graphs have to be there."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from service.contracts.algorithms import QuantizationAwareTraining
from service.contracts.config import parse_config
from service.contracts.metrics import LabelRef
from service.contracts.training_checks import graph_losses
from tests.unit.contracts.refusals import problems

GRAPH = {"base64": base64.b64encode(b"graph").decode()}
OF_GRAPH = {"kind": "onnx", "graph": GRAPH}


def training(**options: Any) -> QuantizationAwareTraining:
    (found,) = parse_config({"algorithms": [{"method": "qat", **options}]}).algorithms
    assert isinstance(found, QuantizationAwareTraining)
    return found


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"epochs": 0}, "epochs"),
        ({"steps": 0}, "steps"),
        ({"seconds": 0}, "seconds"),
        ({"batch_size": 0}, "batch_size"),
        ({"validation_share": 0}, "validation_share"),
        ({"validation_share": 0.9}, "validation_share"),
        ({"losses": []}, "losses"),
        ({"losses": [{"kind": "cross_entropi"}]}, "losses/0/kind"),
        ({"losses": [{"kind": "mse", "label": "y"}]}, "losses/0/label"),
        ({"losses": [{"kind": "onnx"}]}, "losses/0/graph"),
        ({"losses": [{"kind": "onnx", "graph": {"path": "x.onnx"}}]}, "losses/0/graph/path"),
        ({"augmentations": [{"kind": "shift", "axis": 0}]}, "augmentations/0/axis"),
        ({"augmentations": [{"kind": "flip"}, {"kind": "flip"}]}, ""),
        ({"optimizer": {"learning_rate": 0}}, "optimizer/learning_rate"),
        ({"device": "tpu"}, "device"),
    ],
)
def test_refusals_point_at_the_field(options: dict[str, Any], place: str) -> None:
    ((pointer, _),) = problems({"algorithms": [{"method": "qat", **options}]}, pointer="")
    assert pointer == f"/algorithms/0/{place}".rstrip("/")


@pytest.mark.parametrize(
    ("options", "epoch_steps", "most"),
    [
        ({}, 50, 30),
        ({}, 25, 40),
        ({}, 3, 100),
        ({"epochs": 3, "steps": 10}, 1, 3),
        ({"steps": 10}, 1, None),
        ({"seconds": 10}, 1, None),
    ],
)
def test_epochs_end_it_where_nothing_else_does(options: dict[str, Any], epoch_steps: int, most: int | None) -> None:
    assert training(**options).most_epochs(epoch_steps) == most


@pytest.mark.parametrize(
    ("loss", "outputs", "arrays", "reference"),
    [
        ({"kind": "cross_entropy", "output": "y"}, {"output": "y"}, {"labels": LabelRef(None, True)}, False),
        ({"kind": "cross_entropy", "labels": "z"}, {"output": 0}, {"labels": LabelRef("z", True)}, False),
        ({"kind": "mse"}, {"output": 0}, {"targets": LabelRef(None, False)}, False),
        ({"kind": "mse", "output": "y", "targets": "t"}, {"output": "y"}, {"targets": LabelRef("t", False)}, False),
        ({"kind": "distillation"}, {}, {}, True),
        ({"kind": "distillation", "outputs": ["a", "b"]}, {"outputs/0": "a", "outputs/1": "b"}, {}, True),
        (OF_GRAPH, {}, {}, False),
        (
            {**OF_GRAPH, "inputs": {"i": {"output": 1}, "j": {"array": "boxes"}}},
            {"inputs/i/output": 1},
            {"inputs/j/array": LabelRef("boxes", False)},
            False,
        ),
        ({**OF_GRAPH, "inputs": {"a/b": {"reference": "y"}}}, {"inputs/a~1b/reference": "y"}, {}, True),
    ],
)
def test_losses_say_what_they_read(
    loss: dict[str, Any], outputs: dict[str, Any], arrays: dict[str, LabelRef], reference: bool
) -> None:
    (found,) = training(losses=[loss]).losses
    assert found.output_refs() == outputs
    assert found.label_refs() == arrays
    assert found.reads_reference is reference
    assert found.name == f"loss {loss['kind']}"


def test_graphs_of_metrics_and_losses_are_found_once_each() -> None:
    graphs = [{"kind": "onnx", "graph": {"model_id": name}} for name in ("mdl_1", "mdl_2")]
    training = {"method": "qat", "losses": [*graphs, OF_GRAPH]}
    config = parse_config(
        {"evaluation": {"metrics": graphs[:1]}, "algorithms": [{"method": "bias_correction"}, training]}
    )
    assert config.evaluation.graph_models == ("mdl_1",)
    assert config.graph_models == ("mdl_1", "mdl_2")
    assert [place for place, _ in graph_losses(config)] == [f"/config/algorithms/1/losses/{k}" for k in range(3)]
    assert parse_config({}).graph_models == ()
