"""Losses against torch's own, scipy and numpy; what the config leaves open against what the data is."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor
from torch.nn import functional

from service.contracts.algorithms.training import (
    CrossEntropyLoss,
    DistillationLoss,
    GraphLoss,
    MeanSquareLoss,
    TrainingLoss,
)
from service.contracts.errors import InvalidConfigError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.metrics import F1, RMSE, GraphInput, GraphSource, MeanIoU, Metric, Top1
from service.contracts.model import TensorInfo
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.data import ArrayDataset
from worker.quantizer.evaluation.metrics.distances import Divergence
from worker.quantizer.training.loss_terms import tensor_of
from worker.quantizer.training.losses import Losses, OutputFacts, Tensors

Arrays = dict[str | None, np.ndarray]


def output(*shape: int | str, name: str = "y", dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def facts(*outputs: TensorInfo, metrics: tuple[Metric, ...] = (), **known: Any) -> OutputFacts:
    return OutputFacts(outputs or (output("N", 10),), metrics, **known)


def tensors(outputs: Mapping[str, np.ndarray], inner: Mapping[str, np.ndarray] | None = None) -> Tensors:
    """Of arrays that onnxruntime returned."""
    made = [{name: tensor_of(array, "cpu") for name, array in found.items()} for found in (outputs, inner or {})]
    return Tensors(made[0], made[1])


def settled(
    spec: TrainingLoss,
    teacher: Mapping[str, np.ndarray],
    arrays: Arrays | None = None,
    about: OutputFacts | None = None,
) -> Losses:
    known = about or facts(*(output(*array.shape, name=name) for name, array in teacher.items()))
    losses = Losses([spec], known, pointer="/algorithms/2")
    losses.settle(tensors(teacher), arrays or {})
    return losses


def value(
    losses: Losses, student: np.ndarray, teacher: np.ndarray | None = None, arrays: Arrays | None = None
) -> float:
    given = None if teacher is None else tensors({"y": teacher})
    return float(losses(tensors({"y": student}), given, arrays or {}))


def softmax(values: np.ndarray, axis: int = -1) -> np.ndarray:
    return scipy.special.softmax(values, axis=axis)


@pytest.mark.parametrize(
    ("shape", "axis", "labels"),
    [
        ((6, 10), 1, (6,)),
        ((6, 10), 1, (6, 1)),
        ((6, 10, 1, 1), 1, (6,)),
        ((6, 10, 4, 5), 1, (6, 4, 5)),
        ((6, 10, 7), 1, (6, 7)),
        ((6, 7, 10), 2, (6, 7)),
    ],
)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_is_the_mean_over_labels(shape, axis, labels, smoothing) -> None:
    scores, classes = normal(*shape, scale=3.0), np.random.default_rng(1).integers(0, 10, labels)
    losses = settled(CrossEntropyLoss(smoothing=smoothing), {"y": scores}, {None: classes})
    rows = np.moveaxis(scores, axis, -1).reshape(-1, 10)
    log_p = scipy.special.log_softmax(rows.astype(np.float64), axis=1)
    wanted = smoothing / 10 + (1 - smoothing) * np.eye(10)[classes.reshape(-1)]
    assert value(losses, scores, arrays={None: classes}) == pytest.approx(-(wanted * log_p).sum(1).mean(), rel=1e-5)
    assert (losses.arrays, losses.needs_teacher, losses.notes) == ((None,), False, ())


def test_gradients_of_cross_entropy_are_torchs_and_those_of_probabilities_of_their_logarithm() -> None:
    classes = np.random.default_rng(1).integers(0, 10, 6).astype(np.uint8)
    losses = settled(CrossEntropyLoss(weight=3.0, smoothing=0.1), {"y": normal(6, 10)}, {None: classes})
    ours, theirs = (torch.from_numpy(normal(6, 10, seed=2)).requires_grad_() for _ in range(2))
    losses(Tensors({"y": ours}), None, {None: classes}).backward()
    wanted = torch.from_numpy(classes.astype(np.int64))
    (3.0 * functional.cross_entropy(theirs, wanted, label_smoothing=0.1)).backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    # probabilities are scored by their logarithm
    scores, classes = normal(50, 10, scale=2.0), np.random.default_rng(1).integers(0, 10, 50)
    losses = settled(CrossEntropyLoss(), {"y": softmax(scores)}, {None: classes})
    assert losses.notes == ("output 'y' contains probabilities: use their logarithms as scores",)
    wanted = functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(classes))
    found = value(losses, softmax(scores), arrays={None: classes})
    assert found == pytest.approx(float(wanted), rel=0.02)
    # A quantized probability may be 0: the loss and its gradient stay finite, and point upwards.
    zero = torch.zeros(1, 10).index_fill_(1, torch.tensor([3]), 1.0).requires_grad_()
    made = losses(Tensors({"y": zero}), None, {None: np.array([4])})
    made.backward()
    assert torch.isfinite(made)
    assert torch.isfinite(zero.grad).all()
    assert zero.grad[0, 4] < 0


def test_metrics_name_the_axis_of_classes_and_labels_that_do_not_count() -> None:
    scores, classes = normal(2, 5, 4, 4), np.random.default_rng(1).integers(0, 5, (2, 4, 4))
    classes[:, :2] = 255
    wanted = functional.cross_entropy(torch.from_numpy(scores), torch.from_numpy(classes), ignore_index=255)
    for axis, made in ((1, scores), (3, np.moveaxis(scores, 1, 3))):
        known = facts(output("N", *made.shape[1:]), metrics=(MeanIoU(ignore_index=255, class_axis=axis),))
        losses = settled(CrossEntropyLoss(), {"y": made}, {None: classes}, known)
        assert value(losses, made, arrays={None: classes}) == pytest.approx(float(wanted), rel=1e-5)
        assert value(losses, made, arrays={None: np.full_like(classes, 255)}) == 0.0

    # a whole input has one sample
    scores = normal(10)
    losses = settled(CrossEntropyLoss(), {"y": scores}, {None: np.array([3])}, facts(output(10)))
    wanted = -scipy.special.log_softmax(scores)[3]
    assert value(losses, scores, arrays={None: np.array([3])}) == pytest.approx(wanted, rel=1e-5)


def test_mean_square_is_that_of_the_targets() -> None:
    made, targets = normal(7, 2, seed=1), normal(7, 2, 1, seed=2).astype(np.float64)
    losses = settled(MeanSquareLoss(targets="goal", weight=2.0), {"y": made}, {"goal": targets})
    assert losses.arrays == ("goal",)
    wanted = 2.0 * np.square(made - targets[..., 0]).mean()
    assert value(losses, made, arrays={"goal": targets}) == pytest.approx(wanted, rel=1e-5)
    integers = np.arange(14).reshape(7, 2)
    wanted = 2.0 * np.square(made - integers).mean()
    assert value(losses, made, arrays={"goal": integers}) == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("shape", [(8, 10), (8, 6, 10), (8, 10, 3, 4), (8, 10, 1, 1)])
def test_divergence_is_that_of_the_metric(shape: tuple[int, ...]) -> None:
    teacher, student = normal(*shape, scale=2.0), normal(*shape, seed=1, scale=2.0)
    losses = settled(DistillationLoss(divergence="kl"), {"y": teacher})
    metric = Divergence()
    assert metric.update(teacher, student)
    assert value(losses, student, teacher) == pytest.approx(metric.nats, rel=1e-5)
    assert value(losses, teacher, teacher) == pytest.approx(0.0, abs=1e-6)
    assert losses.needs_teacher


def test_divergence_of_softened_scores_and_of_probabilities() -> None:
    teacher, student = normal(30, 10, scale=2.0), normal(30, 10, seed=1, scale=2.0)

    def apart(temperature: float) -> float:
        p, q = softmax(teacher / temperature), softmax(student / temperature)
        return float(scipy.special.rel_entr(p, q).sum(axis=1).mean())

    losses = settled(DistillationLoss(divergence="kl", temperature=4.0), {"y": teacher})
    assert value(losses, student, teacher) == pytest.approx(16.0 * apart(4.0), rel=1e-4)
    losses = settled(DistillationLoss(divergence="kl"), {"y": softmax(teacher)})
    assert value(losses, softmax(student), softmax(teacher)) == pytest.approx(apart(1.0), rel=0.02)


def test_distances_are_over_the_variance_of_the_sample() -> None:
    sample, teacher, student = normal(9, 4, scale=7.0) + 100.0, normal(5, 4, seed=1), normal(5, 4, seed=2)
    losses = settled(DistillationLoss(divergence="mse"), {"y": sample})
    wanted = np.square(student - teacher).mean() / sample.astype(np.float64).var()
    assert value(losses, student, teacher) == pytest.approx(wanted, rel=1e-5)
    for constant, scale in ((5.0, 25.0), (0.0, 1.0)):
        losses = settled(DistillationLoss(divergence="mse"), {"y": np.full((9, 4), constant, np.float32)})
        assert value(losses, student, teacher) == pytest.approx(np.square(student - teacher).mean() / scale, rel=1e-5)


def test_outputs_and_inner_tensors_are_averaged() -> None:
    teacher = {"y": normal(5, 4, seed=1), "z": normal(5, 3, 2, seed=2)}
    student = {"y": normal(5, 4, seed=3), "z": normal(5, 3, 2, seed=4)}
    within = {"a": normal(5, 6, seed=5), "b": normal(5, 2, 2, seed=6)}
    found = {"a": normal(5, 6, seed=7), "b": normal(5, 2, 2, seed=8)}
    spec = DistillationLoss(divergence="mse", tensors=("a", "b"), tensors_weight=0.3, weight=2.0)
    about = facts(
        *(output(*array.shape, name=name) for name, array in teacher.items()), output(5, name="n", dtype="int64")
    )
    losses = Losses([spec], about)
    assert losses.inner_tensors == ("a", "b")
    losses.settle(tensors(teacher, within), {})

    def apart(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> float:
        return float(np.mean([np.square(one[name] - other[name]).mean() / other[name].var() for name in other]))

    wanted = 2.0 * (apart(student, teacher) + 0.3 * apart(found, within))
    made = losses(tensors(student, found), tensors(teacher, within), {})
    assert float(made) == pytest.approx(wanted, rel=1e-5)
    alone = Losses([DistillationLoss(divergence="mse", outputs=("z",))], about)
    alone.settle(tensors(teacher), {})
    assert float(alone(tensors(student), tensors(teacher), {})) == pytest.approx(
        apart({"z": student["z"]}, {"z": teacher["z"]}), rel=1e-5
    )


def test_terms_are_summed_by_their_weights() -> None:
    scores, other, classes = normal(6, 10), normal(6, 10, seed=1), np.arange(6)
    specs = [CrossEntropyLoss(weight=2.0), DistillationLoss(weight=0.5), CrossEntropyLoss(smoothing=0.5)]
    losses = Losses(specs, facts())
    arrays: Arrays = {None: classes}
    losses.settle(tensors({"y": scores}), arrays)
    student = torch.from_numpy(other).requires_grad_()
    made, bare = losses(Tensors({"y": student}), tensors({"y": scores}), arrays), 0.0
    for spec in specs:
        alone = Losses([spec], facts())
        alone.settle(tensors({"y": scores}), arrays)
        # Beside a loss of labels the distillation compares classes; alone it guesses the same by ten columns.
        bare += float(alone(tensors({"y": other}), tensors({"y": scores}), arrays))
    assert float(made.detach()) == pytest.approx(bare, rel=1e-5)
    made.backward()
    assert student.grad.abs().sum() > 0


def test_low_precision_is_computed_in_float32_where_the_outputs_are() -> None:
    teacher, student = normal(8, 10), normal(8, 10, seed=1)
    losses = settled(DistillationLoss(), {"y": teacher})
    rounded = torch.from_numpy(student).bfloat16()
    found = losses(Tensors({"y": rounded}), tensors({"y": teacher}), {})
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(value(losses, rounded.float().numpy(), teacher), rel=1e-6)
    made = tensors({"y": student.astype(ml_dtypes.bfloat16)}).outputs["y"]
    assert torch.equal(made, rounded.float())
    # a loss is computed where the outputs are
    specs = [CrossEntropyLoss(), MeanSquareLoss(targets="goal"), DistillationLoss(), GraphLoss(graph=_SOURCE)]
    losses = Losses(specs, facts(), graphs={3: Product("y", "wanted", "labels")})
    arrays: Arrays = {None: np.arange(6), "goal": normal(6, 10), "wanted": normal(6, 10, seed=2)}
    losses.settle(tensors({"y": normal(6, 10)}), arrays)
    made = Tensors({"y": torch.empty(6, 10, device="meta")})
    assert losses(made, made, arrays).device.type == "meta"
    # samples that fill up are cut off
    made = tensors({"y": normal(4, 10), "one": normal(1)}, {"a": normal(4, 2)}).cut(3, 4)
    assert [tuple(made.outputs[name].shape) for name in ("y", "one")] == [(3, 10), (1,)]
    assert made.inner["a"].shape == (3, 2)


_LABELS = {"labels_name": "labels", "largest_class": 9}


@pytest.mark.parametrize(
    ("about", "values", "divergence", "why"),
    [
        (facts(metrics=(Top1(),), **_LABELS), normal(5, 10), "Kullback", "metric top1"),
        (facts(metrics=(F1(threshold=0.5),)), normal(5, 10), "mean square", "metric f1_macro"),
        (facts(metrics=(RMSE(),), **_LABELS), normal(5, 10), "mean square", "metric rmse"),
        (facts(**_LABELS), normal(5, 10), "Kullback", "class labels belong"),
        (facts(**_LABELS), normal(5, 10, 1, 1), "Kullback", "class labels belong"),
        (facts(**_LABELS), normal(5, 9), "mean square", "do not belong"),
        (facts(output("N", 10, name="x"), output("N", 10), **_LABELS), normal(5, 10), "mean square", "do not belong"),
        (facts(labels_name="labels"), normal(5, 10), "mean square", "nothing shows"),
        (facts(), normal(5, 10), "Kullback", "look like scores"),
        (facts(), softmax(normal(5, 10)), "Kullback", "look like scores"),
        (facts(), scipy.special.expit(normal(5, 10)), "mean square", "do not sum to 1"),
        (facts(), normal(5, 2), "mean square", "nothing shows"),
        (facts(metrics=(Top1(output=0),)), normal(5, 1), "mean square", "no scores"),
    ],
)
def test_the_divergence_follows_metrics_labels_and_shape(about, values, divergence, why) -> None:
    losses = Losses([DistillationLoss(outputs=("y",))], about)
    losses.settle(tensors(dict.fromkeys(about.names, values)), {})
    assert losses.notes[0].startswith(f"output 'y': {divergence}")
    assert why in losses.notes[0]
    # What was chosen is what is computed.
    fixed = DistillationLoss(outputs=("y",), divergence="kl" if divergence == "Kullback" else "mse")
    same = Losses([fixed], about)
    same.settle(tensors({"y": values}), {})
    student = tensors({"y": values[::-1] * 0.9})
    ours, theirs = (one(student, tensors({"y": values}), {}) for one in (losses, same))
    assert torch.equal(ours, theirs)

    # beside labels classes lie where these put them
    scores, student = normal(4, 10, 7), normal(4, 10, 7, seed=1)
    arrays: Arrays = {None: np.random.default_rng(0).integers(0, 10, (4, 7))}
    losses = Losses([DistillationLoss(), CrossEntropyLoss()], facts(output("N", 10, 7)))
    losses.settle(tensors({"y": scores}), arrays)
    labelled = settled(CrossEntropyLoss(), {"y": scores}, arrays)
    found = float(losses(tensors({"y": student}), tensors({"y": scores}), arrays))
    found -= value(labelled, student, scores, arrays)
    wanted = scipy.special.rel_entr(softmax(scores, 1), softmax(student, 1)).sum(axis=1).mean()
    assert found == pytest.approx(wanted, rel=1e-4)


def test_facts_are_those_of_config_and_data() -> None:
    outputs = (output("N", 10), output("N", name="n", dtype="int64"))
    x = normal(6, 3)
    about = OutputFacts.of(
        outputs, EvaluationSpec(metrics=(Top1(),)), ArrayDataset({"x": x}, np.array([1, 7, 0, 2, 2, 3]))
    )
    assert (about.names, about.float_outputs) == (("y", "n"), ("y",))
    assert (about.labels_name, about.largest_class, len(about.metrics)) == ("labels", 7, 1)
    for labels, name in ((normal(6), "labels"), (None, None)):
        other = OutputFacts.of(outputs, EvaluationSpec(), ArrayDataset({"x": x}, labels))
        assert (other.labels_name, other.largest_class) == (name, None)


class Product:
    """A graph of three inputs, by hand."""

    def __init__(self, *inputs: str) -> None:
        self.inputs = inputs

    def __call__(self, feeds: Mapping[str, Tensor]) -> Tensor:
        assert set(feeds) == set(self.inputs)
        return (feeds["y"] * feeds["wanted"] - feeds["labels"].float()[:, None]).square().mean()


_SOURCE = GraphSource(base64=base64.b64encode(b"graph").decode())


def test_a_graph_is_fed_as_a_metric_is() -> None:
    spec = GraphLoss(graph=_SOURCE, inputs={"wanted": GraphInput(reference=0)}, weight=2.0)
    losses = Losses([spec], facts(), graphs={0: Product("y", "wanted", "labels")})
    assert losses.needs_teacher
    assert losses.arrays == (None,)
    teacher, student, labels = normal(6, 10), normal(6, 10, seed=1), np.arange(6)
    losses.settle(tensors({"y": teacher}), {None: labels})
    student_tensor = torch.from_numpy(student).requires_grad_()
    made = losses(Tensors({"y": student_tensor}), tensors({"y": teacher}), {None: labels})
    wanted = 2.0 * np.square(student * teacher - labels[:, None]).mean()
    assert float(made.detach()) == pytest.approx(wanted, rel=1e-5)
    made.backward()
    gradient = 4.0 * (student * teacher - labels[:, None]) * teacher / student.size
    np.testing.assert_allclose(student_tensor.grad.numpy(), gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("spec", "arrays", "place", "told"),
    [
        (CrossEntropyLoss(output="z"), {}, "output", "no output 'z'"),
        (CrossEntropyLoss(output="n"), {}, "output", "is int64"),
        (CrossEntropyLoss(), {}, "labels", "no labels"),
        (CrossEntropyLoss(), {None: normal(6)}, "labels", "integers"),
        (CrossEntropyLoss(), {None: np.zeros((6, 3), int)}, "labels", r"shape \[6, 3\]"),
        (CrossEntropyLoss(), {None: np.array([0, 1, 2, 3, 4, 10])}, "labels", "label 10 is no class"),
        (CrossEntropyLoss(labels="c"), {"c": np.array([0, 1, 2, 3, 4, -2])}, "labels", "label -2 is no class"),
        (MeanSquareLoss(targets="goal"), {}, "targets", "no array 'goal'"),
        (MeanSquareLoss(), {None: normal(6, 9)}, "targets", r"shape \[6, 9\]"),
        (DistillationLoss(outputs=("y", "q")), {}, "outputs/1", "no output 'q'"),
        (DistillationLoss(tensors=("inner",)), {}, "tensors/0", "'inner' does not exist"),
        (DistillationLoss(divergence="kl", outputs=("one",)), {}, "outputs/0", "no scores"),
        (GraphLoss(graph=_SOURCE, inputs={"a": GraphInput(output="q")}), {}, "inputs/a/output", "no output 'q'"),
        (GraphLoss(graph=_SOURCE, inputs={"a": GraphInput(output=5)}), {}, "inputs/a/output", "no output 5"),
    ],
)
def test_what_does_not_fit_is_refused(spec: TrainingLoss, arrays: Arrays, place: str, told: str) -> None:
    about = facts(output("N", 10), output("N", 1, name="one"), output("N", name="n", dtype="int64"))
    teacher = tensors({"y": normal(6, 10), "one": normal(6, 1), "n": np.arange(6)})

    with pytest.raises(InvalidConfigError, match=told) as caught:
        Losses([spec], about, graphs={0: Product("y", "a")}, pointer="/algorithms/2").settle(teacher, arrays)
    assert [problem.pointer for problem in caught.value.errors] == [f"/algorithms/2/losses/0/{place}"]


def test_a_loss_is_used_as_it_was_settled() -> None:
    with pytest.raises(InvalidConfigError, match="no output of floats"):
        Losses([DistillationLoss()], facts(output("N", dtype="int64")))
    losses = Losses([DistillationLoss()], facts())
    given = tensors({"y": normal(6, 10)})
    with pytest.raises(ValueError, match="not settled"):
        losses(given, given, {})
    losses.settle(given, {})
    with pytest.raises(ValueError, match="float network"):
        losses(given, None, {})
