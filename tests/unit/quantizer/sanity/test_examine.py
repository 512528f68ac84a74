"""Each check: where it speaks, and where it has to stay silent."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from service.contracts.config import parse_config
from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.model import TensorInfo
from tests.unit.quantizer.sanity.conftest import Bench
from worker.quantizer.data import ArrayDataset, RandomDataset
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.run.services import Services
from worker.quantizer.sanity.alternatives import alternatives
from worker.quantizer.sanity.examine import examine
from worker.quantizer.sanity.look import look_at


def test_correct_data_is_silent_and_random_inputs_are_not_judged(bench: Bench) -> None:
    assert len(set(bench.y.tolist())) > 2
    assert bench.findings() == ()
    assert bench.findings(labels=None) == ()
    # random inputs are not judged
    case = bench.case()
    config = parse_config({"preset": "int8", "random_calibration": {"shapes": {"x": [1, 3, 8, 8]}}})
    random = RandomDataset(case.inputs, config.random_calibration, 0)  # type: ignore[arg-type]
    bare = type(case)(config, case.summary, random, None, case.float_session)
    assert examine(bare, None, Services(run=SilentRun(), threads=1)) == ()


def test_shuffled_labels_are_chance(bench: Bench) -> None:
    labels = np.random.default_rng(0).permutation(bench.y)
    (found,) = bench.findings(labels=labels)
    assert (found.code, found.severity, found.where) == ("float-metric-at-chance", "critical", {"metric": "top1"})
    assert found.undermines_verdict
    config = {"evaluation": {"metrics": [{"kind": "f1", "name": "mine"}]}}
    (found,) = bench.findings(labels=labels, config=config)
    assert (found.code, found.where) == ("float-metric-at-chance", {"metric": "mine"})


def test_labels_that_prove_nothing_accuse_nobody(bench: Bench) -> None:
    wrong = (bench.y[:3] + 1) % 5
    assert "float-metric-at-chance" not in bench.codes(x=bench.x[:3], labels=wrong)
    # noisy labels are no chance
    rng = np.random.default_rng(0)
    noisy = np.where(rng.random(len(bench.y)) < 0.5, rng.integers(0, 5, len(bench.y)), bench.y)
    assert not {code for code in bench.codes(labels=noisy) if code.startswith("float")}


def test_labels_from_one_on_or_of_one_class_are_named(bench: Bench) -> None:
    kept = bench.y < 4
    found = bench.findings(x=bench.x[kept], labels=bench.y[kept] + 1)
    assert [finding.code for finding in found if finding.severity == "critical"] == ["labels-shifted"]
    assert found[0].hint is not None
    assert "add -1 to" in found[0].hint
    # labels of one class
    kept = bench.y == bench.y[0]
    assert bench.codes(x=bench.x[kept], labels=bench.y[kept]) == {"labels-of-one-class"}


def test_one_sample_of_calibration_is_always_named_and_logged_at_once(bench: Bench) -> None:
    one = bench.x[:1] + np.float32(0.01)
    assert bench.codes(calibration=one) == {"one-calibration-sample"}
    assert "one-calibration-sample" in bench.codes(config={"calibration_samples": 1})
    said: list[tuple[str, str]] = []

    class Told(SilentRun):
        def log(self, message: str, level: str = "info") -> None:
            said.append((level, message))

    examine(bench.case(calibration=one), None, Services(run=Told(), threads=1))
    ((level, message),) = said
    assert level == "warning" and "calibrated on 1 sample" in message


NO_RANGES = ({"mode": "dynamic"}, {"mode": "weights_only"}, {"activation": {"dtype": "float16"}})


@pytest.mark.parametrize(
    ("count", "config", "named"),
    [
        (2, {}, True),
        (19, {}, True),
        (20, {}, False),
        *((count, mode, False) for count in (1, 2) for mode in NO_RANGES),
    ],
)
def test_few_samples_of_calibration(bench: Bench, count: int, config: dict[str, object], named: bool) -> None:
    codes = bench.codes(calibration=bench.x[:count] + np.float32(0.01), config=config)
    assert ("few-calibration-samples" in codes) == named and "one-calibration-sample" not in codes


def test_samples_that_do_not_differ_as_they_should(bench: Bench) -> None:
    zeros = np.zeros((40, 3, 8, 8), np.float32)
    (found,) = bench.findings(calibration=zeros)
    assert found.code == "calibration-data-constant"
    assert not found.undermines_verdict
    assert bench.codes(x=zeros, labels=None) == {"evaluation-data-constant"}
    assert all(finding.undermines_verdict for finding in bench.findings(x=zeros, labels=None))
    # identical repeated and nearly constant samples
    same, tiny = np.repeat(bench.x[:1], 40, axis=0), np.float32(0.01)
    assert bench.codes(calibration=same + tiny) == {"calibration-samples-identical"}
    assert "evaluation-samples-identical" in bench.codes(x=same, labels=np.repeat(bench.y[:1], 40))
    assert bench.codes(calibration=np.tile(bench.x[:10] + tiny, (4, 1, 1, 1))) == {"samples-repeated"}
    assert "data-nearly-constant" in bench.codes(calibration=(1e4 + bench.x).astype(np.float32))
    # a missing colour
    grey = bench.x.copy()
    grey[:, 2] = 0.5
    found = [finding for finding in bench.findings(calibration=grey) if finding.code == "channel-constant"]
    assert [finding.where for finding in found] == [{"input": "x", "channel": 2}]


def test_calibration_beside_evaluation(bench: Bench) -> None:
    assert bench.codes(calibration=bench.x) == {"evaluation-in-calibration"}
    few = np.concatenate([bench.x[:3], bench.x[3:40] + np.float32(0.01)])
    (found,) = bench.findings(calibration=few)
    assert (found.code, found.severity) == ("some-evaluation-in-calibration", "info")
    assert "3 of 160" in found.message
    # calibration of another scale
    assert bench.codes(calibration=bench.x * np.float32(255)) == {"calibration-unlike-evaluation"}
    assert not bench.codes(calibration=bench.x * np.float32(1.5))
    # inputs that do not reach the decision
    small = (bench.x * 1e-4).astype(np.float32)
    assert "float-output-nearly-constant" in bench.codes(calibration=small + np.float32(1e-7), x=small, labels=None)


@pytest.mark.parametrize(
    ("fault", "kind"),
    [(lambda x: x[:, ::-1], "channel-order"), (lambda x: x / 255, "scale"), (lambda x: x + 6, "mean")],
)
def test_a_planted_fault_is_found_and_named(bench: Bench, fault: object, kind: str) -> None:
    wrong = np.ascontiguousarray(fault(bench.x), np.float32)  # type: ignore[operator]
    found = [finding for finding in bench.findings(x=wrong) if finding.code == "input-fits-better-otherwise"]
    assert [finding.where["fault"] for finding in found] == [kind]


@pytest.mark.parametrize(("spec", "hint"), [
    ({"layout": "NHWC", "array": "images"}, "`imagenet_tf:BGR`"),
    ({"layout": "NHWC", "array": "images", "scale": 1 / 255, "channel_order": "bgr"}, "`imagenet_tf`"),
    ({"layout": "NHWC"}, '"channel_order": "bgr"'),
])  # fmt: skip
def test_scale_and_channel_order_are_found_together_and_named(bench: Bench, spec: dict, hint: str) -> None:
    rng = np.random.default_rng(0)
    colour = rng.integers(0, 256, (160, 1, 1, 3))
    stored = np.clip(colour + rng.integers(-40, 40, (160, 8, 8, 3)), 0, 255).astype(np.uint8)
    case = bench.case()
    order = 1 if spec.get("channel_order") else -1
    right = np.ascontiguousarray((stored[..., ::order] / 127.5 - 1).transpose(0, 3, 1, 2), np.float32)
    labels = case.float_session.run({"x": right})[0].argmax(axis=1)
    given = PreprocessingSpec.model_validate({"inputs": {"x": spec}})
    data = ArrayDataset({given.input("x").array or "x": stored}, labels, preprocessing=given)
    found = examine(replace(case, calibration=data, evaluation=data), None, Services(run=SilentRun(), threads=1))
    told = [one.hint for one in found if one.code == "input-fits-better-otherwise"]
    assert len(told) == 1 and hint in (told[0] or "")


@pytest.mark.parametrize(("top", "dtype", "full"), [(16, np.float32, 16), (16, np.uint8, 16), (200, np.uint8, 255)])
def test_stored_values_over_the_largest_are_tried_with_a_setting_to_paste(top: int, dtype: type, full: int) -> None:
    stored = np.random.default_rng(0).integers(0, top + 1, (40, 1, 8, 8)).astype(dtype)
    spec = PreprocessingSpec.model_validate({"inputs": {"x": {"array": "pixels", "scale": 2.0, "mean": [3.0]}}})
    tensor = TensorInfo(name="x", dtype="float32", shape=(None, 1, 8, 8))
    look = look_at(ArrayDataset({"pixels": stored}, preprocessing=spec), (tensor,))
    (found,) = [one for one in alternatives(look, tensor, spec) if one.words == f"values divided by {full}"]
    pasted = PreprocessingSpec.model_validate(json.loads(found.hint.split("`")[1])).input("x")
    assert pasted == InputSpec(array="pixels", scale=1 / full)
    np.testing.assert_allclose(found.change(stored * np.float32(2) - 3), stored / np.float32(full), atol=1e-6)
