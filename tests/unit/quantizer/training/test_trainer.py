"""Training as a step: it learns, tells, stops, goes on after a kill, and is undone if it is no use."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from service.contracts.errors import CanceledError, InvalidConfigError, NotDifferentiableError
from service.contracts.report import AlgorithmFigures
from tests.unit.quantizer.toolbox import config, make_model, write_npz
from tests.unit.quantizer.training.networks import pictures, trained
from worker.quantizer.pipeline import Provisions, Result, quantize
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.training.network import Validation, ValidationScore
from worker.quantizer.training.samples import split_samples

FEW_BITS: dict[str, Any] = {
    "preset": "int8", "weight": {"dtype": "int4"}, "activation": {"dtype": "uint4"},
    "evaluation": {"layer_samples": 1, "latency_runs": 1},
}  # fmt: skip


class Listener(SilentRun):
    """Remembers what was told."""

    def __init__(self) -> None:
        self.metrics: list[tuple[str, int, dict[str, float | None]]] = []
        self.words: list[str] = []

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        self.metrics.append((stage, step, dict(values)))

    def progress(self, stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> None:
        if stage == "qat":
            self.words.append(message)


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return trained()


def train(
    folder: Path,
    model: onnx.ModelProto,
    qat: dict[str, Any],
    *,
    labels: bool = True,
    run: Run | None = None,
    samples: int = 120,
    checkpoints: Path | None = None,
    **settings: Any,
) -> Result:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    images, classes = pictures(samples, seed=1)
    source = write_npz(folder / "calibration.npz", x=images, **({"labels": classes} if labels else {}))
    asked = config(**{**FEW_BITS, **settings, "algorithms": [{"method": "qat", **qat}]})
    return quantize(path, asked, source, run=run or SilentRun(), threads=1, provisions=Provisions(checkpoints))


def accuracy(model: bytes) -> float:
    images, labels = pictures(600, seed=99)
    return 100 * float((ort.InferenceSession(model).run(["y"], {"x": images})[0].argmax(1) == labels).mean())


def outcome(result: Result) -> AlgorithmFigures:
    return result.report.algorithms[-1]


@pytest.mark.long
@pytest.mark.slow
def test_distillation_without_labels_recovers_what_few_bits_lose(tmp_path: Path, model: onnx.ModelProto) -> None:
    listener = Listener()
    result = train(tmp_path, model, {"epochs": 10, "batch_size": 16}, labels=False, run=listener)
    exact = accuracy(model.SerializeToString())
    found = outcome(result)
    assert found.training is not None and found.kept, found.summary
    losses = [epoch.validation_loss for epoch in found.training.epochs]
    assert losses[found.training.best_epoch] < 0.7 * losses[0]
    assert found.training.best_epoch >= losses.index(min(losses))
    assert accuracy(result.model) > exact - 8
    assert [step for _, step, _ in listener.metrics] == list(range(11))
    assert listener.metrics[0][2]["train_loss"] is None
    assert found.training.samples + found.training.validation_samples <= 120
    assert found.training.ended == "epochs"


SAMPLES = np.linspace(-1.0, 1.0, 8)
# Standings of the network before the training and after each of five epochs: loss, and how it lies over batches.
CURVE = ((1.0, SAMPLES), (0.5, SAMPLES), (0.3, SAMPLES), (0.4, SAMPLES[::-1]), (0.45, SAMPLES), (1.1, SAMPLES[::-1]))


@pytest.mark.slow
def test_the_last_epoch_counts_that_chance_does_not_tell_from_the_best(tmp_path, model, monkeypatch) -> None:
    standings = iter([ValidationScore(loss, None, losses=tuple(loss + spread)) for loss, spread in CURVE])
    monkeypatch.setattr(Validation, "measure", lambda self: next(standings))
    result = train(tmp_path, model, {"epochs": 5, "batch_size": 32, "accept": "always"}, labels=False)
    training = outcome(result).training
    assert training.best_epoch == 3, "epoch 4 is worse on every batch, epoch 5 than no training at all"


class Dies(Listener):
    """Ends the run, as a kill would, once an epoch is told."""

    def __init__(self, epoch: int) -> None:
        super().__init__()
        self._epoch, self._dies = epoch, False

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        super().metric(stage, step, values)
        self._dies = step >= self._epoch

    def progress(self, stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> None:
        if self._dies:
            raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "batch_norm"),
    [("sgd", "folded"), ("adamw", "unfolded"), pytest.param("adamw", "folded", marks=pytest.mark.long)],
)
def test_another_attempt_goes_on_and_gives_the_same_bytes(tmp_path, model, optimizer, batch_norm, monkeypatch) -> None:
    monkeypatch.setattr("worker.quantizer.training.loop._MOST_TIME", 1e9)  # every epoch is kept, however short
    kept = tmp_path / "kept"
    kept.mkdir()
    qat = {
        **{"epochs": 4, "batch_size": 16, "accept": "always", "oscillation_threshold": 0.001},
        **{"optimizer": {"kind": optimizer}, "batch_norm": batch_norm},
        "augmentations": [{"kind": "flip"}, {"kind": "noise"}],
    }
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, model, qat, run=Dies(2), checkpoints=kept)
    listener = Listener()
    resumed = train(tmp_path, model, qat, run=listener, checkpoints=kept)
    assert [step for _, step, _ in listener.metrics] == [3, 4]
    undisturbed = train(tmp_path, model, qat)
    assert resumed.model == undisturbed.model
    assert outcome(resumed).training == outcome(undisturbed).training


def test_a_cancel_is_heard_within_an_epoch(tmp_path: Path, model: onnx.ModelProto) -> None:
    class Canceled(Listener):
        asked = 0

        def check(self) -> None:
            if self.metrics:
                self.asked += 1
            if self.asked > 5:
                raise CanceledError("enough")

    run = Canceled()
    with pytest.raises(CanceledError):
        train(tmp_path, model, {"epochs": 50, "batch_size": 4}, run=run)
    assert [step for _, step, _ in run.metrics] == [0], "in the middle of the first epoch"


@pytest.mark.slow
def test_a_training_that_is_no_use_is_undone(tmp_path: Path, model: onnx.ModelProto) -> None:
    wild = {"epochs": 2, "batch_size": 16, "optimizer": {"learning_rate": 5.0}, "gradient_clip": None}
    found = outcome(train(tmp_path, model, wild))
    assert not found.kept
    assert found.reason_code in ("no-epoch-better", "trained-worse")


@pytest.mark.slow
def test_budgets_end_it(tmp_path: Path, model: onnx.ModelProto) -> None:
    steps = outcome(train(tmp_path, model, {"steps": 5, "batch_size": 16, "accept": "always"})).training
    assert steps is not None and (steps.epochs[-1].steps, steps.ended) == (5, "steps")
    seconds = outcome(train(tmp_path, model, {"seconds": 0.5, "batch_size": 16, "accept": "always"})).training
    assert seconds is not None and seconds.ended == "seconds"
    patience = outcome(
        train(tmp_path, model, {"epochs": 40, "patience": 1, "optimizer": {"learning_rate": 3.0}})
    ).training
    assert patience is not None and patience.ended == "patience" and len(patience.epochs) < 41


def test_too_few_samples_and_a_tensor_that_is_not_there_are_told(tmp_path: Path, model: onnx.ModelProto) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        train(tmp_path, model, {}, samples=3)
    assert [item.pointer for item in caught.value.errors] == ["/config/algorithms/0/data_size"]
    with pytest.raises(InvalidConfigError, match="nowhere") as caught:
        train(tmp_path, model, {"losses": [{"kind": "distillation", "tensors": ["nowhere"]}]})
    assert [item.pointer for item in caught.value.errors] == ["/algorithms/0/losses/0/tensors/0"]


def test_a_dataset_that_is_sorted_by_class_is_split_in_all_its_classes() -> None:
    labels = np.repeat(np.arange(4), 40)
    parts = split_samples(160, validation_share=0.2, judging=16, classes=labels, seed=3)
    for numbers, share in ((parts.training, 0.72), (parts.validation, 0.18), (parts.judging, 0.1)):
        assert np.bincount(labels[numbers], minlength=4) == pytest.approx(40 * share, abs=1.5)
    assert sorted(np.concatenate([parts.training, parts.validation, parts.judging])) == list(range(160))
    again = split_samples(160, validation_share=0.2, judging=16, classes=labels, seed=4)
    assert not np.array_equal(parts.training, again.training)
    few = split_samples(4, validation_share=0.89, judging=4, classes=None, seed=0)
    assert (len(few.training), len(few.validation), len(few.judging)) == (2, 1, 1)


@pytest.mark.slow
def test_parts_of_a_batch_give_the_steps_of_a_whole_one(tmp_path, model, monkeypatch) -> None:
    """Gradients of single samples, or of as many as fit, are added up to those of the batch."""
    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    for value in (*fixed.graph.input, *fixed.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 1
    qat = {"epochs": 2, "batch_size": 20, "accept": "always"}
    whole, single = (outcome(train(tmp_path, one, qat)).training for one in (model, fixed))
    monkeypatch.setattr("worker.quantizer.training.network._MOST_ELEMENTS", 12_000)
    parts = outcome(train(tmp_path, model, qat)).training
    assert whole is not None and single is not None and parts is not None
    losses = [[epoch.train_loss for epoch in found.epochs[1:]] for found in (whole, single, parts)]
    assert [epoch.steps for epoch in whole.epochs] == [epoch.steps for epoch in single.epochs]
    assert np.allclose(losses[0], losses[1], rtol=0.05) and np.allclose(losses[0], losses[2], rtol=0.05)


@pytest.mark.slow
def test_an_output_without_a_derivative_is_left_out_where_no_loss_reads_it(tmp_path, model) -> None:
    wider = onnx.ModelProto()
    wider.CopyFrom(model)
    one = onnx.numpy_helper.from_array(np.array([2], np.int64), "two")
    wider.graph.initializer.append(one)
    wider.graph.node.append(onnx.helper.make_node("Unique", ["y"], ["u"]))
    wider.graph.output.append(onnx.helper.make_tensor_value_info("u", onnx.TensorProto.FLOAT, ["K"]))
    qat = {"epochs": 2, "batch_size": 16, "accept": "always"}
    found = outcome(train(tmp_path, wider, {**qat, "losses": [{"kind": "distillation", "outputs": ["y"]}]}))
    assert found.kept and found.training is not None
    assert found.training.metric is None
    with pytest.raises(NotDifferentiableError) as caught:
        train(tmp_path, wider, qat)
    assert caught.value.where["op_type"] == "Unique"


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path, model: onnx.ModelProto) -> None:
    bad = make_model("(float[N,4] y) => (float l) { g = Log (y)\n l = ReduceMean <keepdims = 0> (g) }")
    source = {"base64": base64.b64encode(bad.SerializeToString()).decode()}
    found = outcome(train(tmp_path, model, {"epochs": 5, "losses": [{"kind": "onnx", "graph": source}]}))
    assert not found.kept
    assert found.training is not None and found.training.ended == "diverged"
    old = make_model("(float[N,4] y) => (float l) { l = ReduceMean <keepdims = 0> (y) }", opset=11)
    source = {"base64": base64.b64encode(old.SerializeToString()).decode()}
    with pytest.raises(InvalidConfigError, match="opset 11"):
        train(tmp_path, model, {"epochs": 5, "losses": [{"kind": "onnx", "graph": source}]})


@pytest.mark.slow
def test_a_loss_that_is_a_graph(tmp_path: Path, model: onnx.ModelProto) -> None:
    """Cross-entropy as a graph trains as the one that is built in does."""
    plain = make_model(
        "(float[N,4] y, int64[N] labels) => (float l) {\n p = LogSoftmax <axis = 1> (y)\n i = Unsqueeze (labels, one)\n"
        " g = GatherElements <axis = 1> (p, i)\n n = Neg (g)\n l = ReduceMean <keepdims = 0> (n) }",
        {"one": np.array([1], np.int64)},
    )
    source = {"base64": base64.b64encode(plain.SerializeToString()).decode()}
    common = {"epochs": 2, "batch_size": 16, "accept": "always"}
    by_graph = outcome(train(tmp_path, model, {**common, "losses": [{"kind": "onnx", "graph": source}]})).training
    built_in = outcome(train(tmp_path, model, {**common, "losses": [{"kind": "cross_entropy"}]})).training
    assert by_graph is not None and built_in is not None and built_in.metric == "top1"
    mine = [epoch.train_loss for epoch in by_graph.epochs[1:]]
    assert np.allclose(mine, [epoch.train_loss for epoch in built_in.epochs[1:]], rtol=0.02)
