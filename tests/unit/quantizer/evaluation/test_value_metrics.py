"""Metrics of numbers, against numpy, scipy and scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from scipy.special import log_softmax, rel_entr, softmax
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from service.contracts.errors import InvalidConfigError
from tests.unit.quantizer.evaluation.measuring import measured, value
from tests.unit.quantizer.toolbox import normal, rng

KINDS = ("rmse", "mae", "r2", "pearson", "spearman")
NUMBERS = hnp.arrays(np.float32, st.tuples(st.integers(1, 30)), elements=st.floats(-1e3, 1e3, width=32))


@given(output=NUMBERS, seed=st.integers(0, 20), batch=st.sampled_from([1, 4, 100]))
def test_errors_and_determination(output: np.ndarray, seed: int, batch: int) -> None:
    target = output + normal(*output.shape, seed=seed)
    wide = target.astype(np.float64), output.astype(np.float64)
    found = measured([{"kind": kind} for kind in ("rmse", "mae", "r2")], {"y": output}, target, batch=batch)
    assert found.values["rmse"] == pytest.approx(root_mean_squared_error(*wide), rel=1e-5)
    assert found.values["mae"] == pytest.approx(mean_absolute_error(*wide), rel=1e-5)
    if np.ptp(target) == 0:
        assert "r2" not in found.values and "targets is constant" in found.undefined["r2"]
    else:
        assert found.values["r2"] == pytest.approx(r2_score(*wide), rel=1e-5, abs=1e-6)


@given(seed=st.integers(0, 200), samples=st.integers(2, 40), ties=st.booleans(), batch=st.sampled_from([1, 7, 100]))
def test_correlations(seed: int, samples: int, ties: bool, batch: int) -> None:
    output, target = normal(samples, seed=seed), normal(samples, seed=seed + 1) + 1e3
    target += 0.5 * output
    if ties:
        output, target = np.round(output), np.round(target)
    found = measured([{"kind": "pearson"}, {"kind": "spearman"}], {"y": output}, target, batch=batch)
    if np.ptp(output) == 0 or np.ptp(target) == 0:
        assert found.values == {}
        assert set(found.undefined) == {"pearson", "spearman"}
        return
    wide = output.astype(np.float64), target.astype(np.float64)
    assert found.values["pearson"] == pytest.approx(stats.pearsonr(*wide)[0], abs=1e-6)
    assert found.values["spearman"] == pytest.approx(stats.spearmanr(*wide)[0], abs=1e-6)


def test_columns_are_judged_apart_and_averaged() -> None:
    output, target = normal(50, 3) * [1, 100, 1e-3], normal(50, 3, seed=1)
    target += np.array([1, 0, -0.5], np.float32) * output.astype(np.float32)
    each = [stats.pearsonr(output[:, k], target[:, k].astype(np.float64))[0] for k in range(3)]
    found = measured([{"kind": "pearson"}, {"kind": "spearman"}], {"y": output}, target)
    assert found.values["pearson"] == pytest.approx(np.mean(each), abs=1e-6)
    assert list(found.details["pearson"].values()) == pytest.approx(each, abs=1e-6)
    assert len(found.details["spearman"]) == 3
    # determination is the mean of the columns
    output = normal(50, 3) * [1, 100, 1e-3]
    target = output.astype(np.float32) + normal(50, 3, seed=1)
    wide = target.astype(np.float64), output.astype(np.float32).astype(np.float64)
    each = r2_score(*wide, multioutput="raw_values")
    found = measured([{"kind": "r2"}], {"y": output.astype(np.float32)}, target)
    assert found.values["r2"] == pytest.approx(np.mean(each), rel=1e-5)
    assert list(found.details["r2"].values()) == pytest.approx(each, rel=1e-5)
    # a constant output is determined
    target = normal(30)
    mean = np.full_like(target, target.mean(dtype=np.float64))
    assert value({"kind": "r2"}, {"y": mean}, target) == pytest.approx(0.0, abs=1e-6)
    assert value({"kind": "r2"}, {"y": target}, target) == 1.0


def test_axes_of_one_do_not_matter_and_what_is_not_finite_has_no_value() -> None:
    output, target, kinds = normal(30), normal(30, seed=1), [{"kind": kind} for kind in KINDS]
    expected = measured(kinds, {"y": output}, target).values
    for shape in ((30, 1), (30, 1, 1)):
        assert measured(kinds, {"y": output.reshape(shape)}, target).values == expected
        assert measured(kinds, {"y": output}, target.reshape(shape)).values == expected
    output[4] = np.nan
    found = measured(kinds, {"y": output}, target)
    assert found.values == {}
    assert set(found.undefined) == set(KINDS)


# Against the float model's output.

FIDELITY = ("cosine", "sqnr", "psnr", "l2", "kl", "agreement")


def oracle(x: np.ndarray, y: np.ndarray) -> dict[str, float]:
    x, y = x.astype(np.float64), y.astype(np.float64)
    noise = ((x - y) ** 2).sum()
    axis = 1 if x.ndim == 4 else -1
    return {
        "cosine": (x * y).sum() / np.linalg.norm(x) / np.linalg.norm(y),
        "sqnr": 10 * math.log10((x**2).sum() / noise),
        "psnr": 10 * math.log10(np.abs(x).max() ** 2 / (noise / x.size)),
        "l2": np.linalg.norm(x - y) / np.linalg.norm(x),
        "kl": rel_entr(softmax(x, axis), softmax(y, axis)).sum(axis).mean(),
        "agreement": 100 * (x.argmax(axis) == y.argmax(axis)).mean(),
    }


@pytest.mark.parametrize("shape", [(30, 8), (12, 5, 8), (9, 6, 4, 3)])
@given(seed=st.integers(0, 100), scale=st.sampled_from([0.01, 1.0, 30.0]), batch=st.sampled_from([1, 7, 100]))
def test_distances_from_the_float_output(shape: tuple[int, ...], seed: int, scale: float, batch: int) -> None:
    x = normal(*shape, seed=seed) * np.float32(scale)
    y = x + normal(*shape, seed=seed + 1) * np.float32(0.3 * scale)
    found = measured([{"kind": kind} for kind in FIDELITY], {"y": y}, reference={"y": x}, batch=batch).values
    assert found == {kind: pytest.approx(expected, rel=1e-4, abs=1e-4) for kind, expected in oracle(x, y).items()}


def test_identical_outputs_and_those_of_the_float_model_alone() -> None:
    x, kinds = normal(20, 5), [{"kind": kind} for kind in FIDELITY]
    found = measured(kinds, {"y": x}, reference={"y": x}).values
    assert found == {"cosine": 1.0, "sqnr": 200.0, "psnr": 200.0, "l2": 0.0, "kl": 0.0, "agreement": 100.0}
    alone = measured(kinds, {"y": x})
    assert alone.values == alone.undefined == {}
    other = measured(kinds, {"y": normal(9, 4)}, reference={"y": normal(9, 5)})
    assert other.values == {} and set(other.undefined) == set(FIDELITY)
    assert all("the float model's [2, 5]" in why for why in other.undefined.values())


@pytest.mark.parametrize(
    ("kind", "x", "says"),
    [
        ("sqnr", np.zeros((9, 3), np.int64), "not floats"),
        ("kl", normal(9, 1), "no class scores"),
        ("agreement", normal(9, 1), "decides nothing"),
    ],
)
def test_outputs_that_a_distance_cannot_take(kind: str, x: np.ndarray, says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says) as caught:
        measured([{"kind": kind}], {"y": x}, reference={"y": x})
    assert caught.value.errors[0].pointer == "/config/evaluation/metrics/0/output"


# Perplexity.


@given(seed=st.integers(0, 100), classes=st.integers(2, 9), form=st.sampled_from(["logits", "log", "p"]))
def test_perplexity(seed: int, classes: int, form: str) -> None:
    logits, labels = normal(8, 6, classes, seed=seed) * 3, rng(seed).integers(0, classes, (8, 6))
    labels[rng(seed + 1).random((8, 6)) < 0.2] = -100
    labels[0, 0] = 0
    wide = logits.astype(np.float64)
    own = np.take_along_axis(log_softmax(wide, axis=-1), np.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    expected = math.exp(-own[labels >= 0].mean())
    output: dict[str, Any] = {"logits": wide, "log": log_softmax(wide, axis=-1), "p": softmax(wide, axis=-1)}
    word = {"logits": "logits", "log": "log_probabilities", "p": "probabilities"}[form]
    got = value({"kind": "perplexity", "scores": word}, {"y": output[form].astype(np.float32)}, labels, batch=3)
    assert got == pytest.approx(expected, rel=1e-4)


def test_perplexity_of_the_next_token_and_of_an_impossible_one() -> None:
    logits, tokens = normal(8, 6, 5), rng(1).integers(0, 5, (8, 6))
    expected = value({"kind": "perplexity"}, {"y": logits[:, :-1]}, tokens[:, 1:])
    metric = {"kind": "perplexity", "shift": True, "labels": "tokens"}
    assert value(metric, {"y": logits}, arrays={"tokens": tokens}) == expected
    # an impossible label has no perplexity
    output = np.tile(np.array([1.0, 0.0], np.float32), (5, 1))
    found = measured([{"kind": "perplexity", "scores": "probabilities"}], {"y": output}, np.array([0, 0, 1, 0, 0]))
    assert found.values == {}
    assert "probability 0" in found.undefined["perplexity"]
