"""Declared metrics, the gate and trainings in the config: names, resolution, and the place of every refusal."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.algorithms import QuantizationAwareTraining
from service.contracts.config import parse_config
from service.contracts.data_checks import graph_losses
from service.contracts.metrics import LabelRef
from service.contracts.metrics.graph import MAX_INLINE_BYTES
from tests.unit.contracts.refusals import problems

SOME = base64.b64encode(b"some bytes").decode()
BOXES = {"kind": "map", "boxes": 0, "scores": 1}
ONNX = {"kind": "onnx", "graph": {"base64": SOME}}


def of_kinds(kinds: str, **optional: Any) -> Any:
    return st.fixed_dictionaries({"kind": st.sampled_from(kinds.split())}, optional=optional)


labelled = {
    "output": st.integers(0, 3) | st.text(min_size=1, max_size=5),
    "labels": st.text(min_size=1, max_size=5) | st.none(), "ignore_index": st.integers(-100, 255) | st.none(),
}  # fmt: skip
metrics = st.one_of(
    of_kinds("top1 top5 mean_iou per_class_accuracy", **labelled),
    st.integers(1, 9).map(lambda k: {"kind": "accuracy_at_k", "k": k}),
    of_kinds(
        "f1 precision recall",
        average=st.sampled_from(["macro", "micro", "weighted"]),
        threshold=st.floats(0, 1) | st.none(),
    ),
    of_kinds("rmse mae r2 pearson spearman perplexity cosine sqnr psnr kl l2 agreement"),
    of_kinds("word_error_rate", separator=st.integers(0, 9)),
    st.sampled_from([BOXES, {**BOXES, "classes": "c"}]),
    of_kinds("onnx", inputs=st.just({"a/b": {"output": 0}}), better=st.sampled_from(["higher", "lower"])).map(
        lambda metric: {**metric, "graph": {"base64": SOME}}
    ),
)


@given(st.lists(metrics, max_size=5))
def test_resolving_a_resolved_config_changes_nothing(declared: list[dict[str, Any]]) -> None:
    named = [{**metric, "name": f"m{k}"} for k, metric in enumerate(declared)]
    once = parse_config({"evaluation": {"metrics": named}})
    stored = json.loads(once.model_dump_json())
    assert parse_config(stored) == once
    assert json.loads(parse_config(stored).model_dump_json()) == stored
    assert once.evaluation.gate.metric == ("m0" if declared else "top1")


@pytest.mark.parametrize(
    ("metric", "name"),
    [
        ({"kind": "accuracy_at_k", "k": 3}, "accuracy_at_3"),
        ({"kind": "f1"}, "f1_macro"),
        ({"kind": "recall", "average": "micro"}, "recall_micro"),
        ({"kind": "precision", "positive_class": 2}, "precision_class_2"),
        (BOXES, "map"),
        ({"kind": "box_agreement", "boxes": 0, "decode": "yolov8"}, "box_agreement"),
        (ONNX, "onnx"),
        ({"kind": "rmse", "name": "depth.rmse"}, "depth.rmse"),
    ],
)
def test_every_metric_has_a_name(metric: dict[str, Any], name: str) -> None:
    spec = parse_config({"evaluation": {"metrics": [metric]}}).evaluation
    assert [found.name for found in spec.metrics] == [name]
    assert spec.primary == spec.gate.metric == name


def evaluation(*declared: dict[str, Any], **gate: Any) -> dict[str, Any]:
    return {"metrics": list(declared), **({"gate": gate} if gate else {})}


def graph(**source: Any) -> dict[str, Any]:
    return evaluation({"kind": "onnx", "graph": source})


TOO_LARGE = base64.b64encode(bytes(MAX_INLINE_BYTES + 1)).decode()


@pytest.mark.parametrize(
    ("given", "place", "says"),
    [
        (evaluation({"kind": "top2"}), "metrics/0/kind", "unknown kind 'top2'; did you mean 'top1'"),
        (evaluation({"kind": "accuracy_at_k", "k": 0}), "metrics/0/k", "must be at least 1"),
        (evaluation({"kind": "top1", "output": -1}), "metrics/0/output", "name of a model output, or its index"),
        (evaluation({"kind": "top1", "output": True}), "metrics/0/output", "name of a model output, or its index"),
        (evaluation({"kind": "top1", "name": "a b"}), "metrics/0/name", "pattern"),
        (evaluation({"kind": "top1"}, {"kind": "top1"}), "metrics/1/name", "name of another metric"),
        (evaluation({"kind": "mae", "name": "top1_agreement"}), "metrics/0/name", "always measured"),
        (evaluation({"kind": "f1", "average": "max"}), "metrics/0/average", "'macro', 'micro'"),
        (evaluation({"kind": "f1", "average": "micro", "positive_class": 1}), "metrics/0", "exclude each other"),
        (evaluation({"kind": "map", "boxes": 0}), "metrics/0/scores", "is missing"),
        (evaluation({**BOXES, "decode": "yolox"}), "metrics/0/scores", "not used with decode"),
        (evaluation({**BOXES, "overlaps": [0.5, 1.5]}), "metrics/0/overlaps/1", "must be at most 1"),
        (evaluation({"kind": "rmse"}, min_value=1), "gate/min_value", "give max_value"),
        (evaluation({"kind": "top1"}, max_value=1), "gate/max_value", "give min_value"),
        (evaluation({"kind": "sqnr"}, max_drop=1), "gate/max_drop", "no bound"),
        (evaluation({"kind": "rmse"}, metric="rsme"), "gate/metric", "did you mean 'rmse'?"),
        (evaluation({"kind": "rmse"}, metric="top1", max_drop=1), "gate/metric", "no metric 'top1' is declared"),
        ({"gate": {"metric": "mean_iou"}}, "gate/metric", "known: top1, top5, top1_agreement"),
        (evaluation({"kind": "mean_iou"}, max_drop=101), "gate/max_drop", "must be at most 100"),
        (evaluation({"kind": "mean_iou"}, min_value=-1), "gate/min_value", "must be at least 0"),
        (graph(), "metrics/0/graph", "base64, or the model_id"),
        (graph(base64=SOME, model_id="mdl_1"), "metrics/0/graph", "base64, or the model_id"),
        (graph(base64="not base64!"), "metrics/0/graph/base64", "not base64 text"),
        (graph(base64=""), "metrics/0/graph/base64", "empty"),
        (graph(base64=TOO_LARGE), "metrics/0/graph/base64", "at most 1048576"),
        (graph(base64=TOO_LARGE * 2), "metrics/0/graph/base64", "larger than 1048576"),
        (graph(path="metric.onnx"), "metrics/0/graph/path", "for the command line"),
        (evaluation({**ONNX, "inputs": {"a/b": {}}}), "metrics/0/inputs/a~1b", "one of output, reference and array"),
    ],
)
def test_refusals_point_at_the_field(given: dict[str, Any], place: str, says: str) -> None:
    ((pointer, message),) = problems({"evaluation": given})
    assert pointer == f"/config/evaluation/{place}"
    assert says in message


def test_error_rates_may_be_above_a_hundred_and_graphs_as_large_as_the_bound() -> None:
    spec = parse_config({"evaluation": evaluation({"kind": "word_error_rate"}, max_value=120, max_drop=110)}).evaluation
    assert spec.gate.max_value == 120
    parse_config({"evaluation": graph(base64=base64.b64encode(bytes(MAX_INLINE_BYTES)).decode())})


# --- trainings: bounds, what losses read, which graphs have to be there ---

OF_INPUTS = {**ONNX, "inputs": {"i": {"output": 1}, "j": {"array": "boxes"}}}


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
def test_refusals_of_a_training_point_at_the_field(options: dict[str, Any], place: str) -> None:
    ((pointer, _),) = problems({"algorithms": [{"method": "qat", **options}]}, pointer="")
    assert pointer == f"/algorithms/0/{place}".rstrip("/")


def test_epochs_end_it_where_nothing_else_does() -> None:
    assert [training().most_epochs(epoch_steps) for epoch_steps in (50, 25, 3)] == [30, 40, 100]
    assert training(epochs=3, steps=10).most_epochs(1) == 3
    assert training(steps=10).most_epochs(1) is training(seconds=10).most_epochs(1) is None


@pytest.mark.parametrize(
    ("loss", "outputs", "arrays", "reference"),
    [
        ({"kind": "cross_entropy", "output": "y"}, {"output": "y"}, {"labels": LabelRef(None, True)}, False),
        ({"kind": "cross_entropy", "labels": "z"}, {"output": 0}, {"labels": LabelRef("z", True)}, False),
        ({"kind": "mse"}, {"output": 0}, {"targets": LabelRef(None, False)}, False),
        ({"kind": "mse", "output": "y", "targets": "t"}, {"output": "y"}, {"targets": LabelRef("t", False)}, False),
        ({"kind": "distillation"}, {}, {}, True),
        ({"kind": "distillation", "outputs": ["a", "b"]}, {"outputs/0": "a", "outputs/1": "b"}, {}, True),
        (ONNX, {}, {}, False),
        (OF_INPUTS, {"inputs/i/output": 1}, {"inputs/j/array": LabelRef("boxes", False)}, False),
        ({**ONNX, "inputs": {"a/b": {"reference": "y"}}}, {"inputs/a~1b/reference": "y"}, {}, True),
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
    training = {"method": "qat", "losses": [*graphs, ONNX]}
    algorithms = [{"method": "bias_correction"}, training]
    config = parse_config({"evaluation": {"metrics": graphs[:1]}, "algorithms": algorithms})
    assert config.evaluation.graph_models == ("mdl_1",)
    assert config.graph_models == ("mdl_1", "mdl_2")
    assert [place for place, _ in graph_losses(config)] == [f"/config/algorithms/1/losses/{k}" for k in range(3)]
    assert parse_config({}).graph_models == ()
