"""Text that a language model makes itself: what is drawn, who is refused, and what a training makes of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from service.contracts.errors import InvalidConfigError
from tests.unit.quantizer.toolbox import config, input_infos, make_model, normal, rng, run_onnx, write_npz
from tests.unit.quantizer.training.networks import filled
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime.session import Session
from worker.quantizer.training.generated import LanguageModel
from worker.quantizer.training.twin import Twin

TOKENS, WIDTH, LENGTH = 12, 16, 10
# The scores of the next token hang on the last one alone: a Markov chain, of which all is known.
CHAIN = """(int64[N,{length}] ids) => (float[N,{length},{tokens}] scores) {{
    [table] e = Gather (table, ids)
    [square] q = Mul (e, e)
    [mean] m = ReduceMean <axes = [-1]> (q)
    [shift] v = Add (m, epsilon)
    [root] r = Sqrt (v)
    [divide] d = Div (e, r)
    [gain] g = Mul (d, gain)
    {middle}
    [head] scores = MatMul (h, head)
}}"""
FOLLOWED = "[same] h = Identity (g)"
LATER = "[all] a = ReduceMean <axes = [1]> (g) [both] h = Add (g, a)"


def chain(*, length: str = "S", middle: str = FOLLOWED, sharp: float = 2.0, own: bool = False) -> onnx.ModelProto:
    """Behind token k comes k + 1 most often; with ``own`` scores are those of the token itself."""
    table = rng(3).standard_normal((TOKENS, WIDTH))
    states = table / np.sqrt((table**2).mean(1, keepdims=True))
    wanted = np.eye(TOKENS) if own else np.roll(np.eye(TOKENS), 1, axis=1)
    head = np.linalg.pinv(states) @ wanted * sharp
    weights = {"table": table, "head": head, "gain": np.ones(WIDTH), "epsilon": np.array(1e-6)}
    text = CHAIN.format(length=length, tokens=TOKENS, middle=middle)
    return make_model(text, {name: array.astype(np.float32) for name, array in weights.items()})


def probabilities(sharp: float) -> np.ndarray:
    """[token, next]: what a chain expects behind each token."""
    scores = np.exp(np.roll(np.eye(TOKENS), 1, axis=1) * sharp)
    found: np.ndarray = scores / scores.sum(1, keepdims=True)
    return found


def walks(count: int, sharp: float = 2.0) -> np.ndarray:
    """Texts of the chain, int64 [count, LENGTH]."""
    random, rising = rng(1), probabilities(sharp).cumsum(1)
    found = random.integers(0, TOKENS, (count, LENGTH))
    for place in range(1, LENGTH):
        found[:, place] = (rising[found[:, place - 1]] < random.random((count, 1))).sum(1)
    return found


def asked(model: onnx.ModelProto) -> LanguageModel:
    session = Session(model.SerializeToString(), threads=1)
    (ids,) = input_infos(model)
    return LanguageModel(ids, "scores", any_length=session, whole=session)


@pytest.mark.parametrize("length", ["S", str(LENGTH)])
def test_tokens_follow_those_that_the_model_expects_behind_them(length: str) -> None:
    model = asked(chain(length=length, sharp=60.0))
    assert model.refusal(walks(20, 60.0)) is None
    starts = np.arange(5)
    made = model.sequences(starts, rng(2).random((5, LENGTH)), lambda: None)
    np.testing.assert_array_equal(made, (starts[:, None] + np.arange(LENGTH)) % TOKENS)


def test_tokens_are_as_frequent_as_the_model_expects_them() -> None:
    model, sharp = asked(chain()), 2.0
    made = model.sequences(np.zeros(600, np.int64), rng(2).random((600, 2)), lambda: None)
    expected = probabilities(sharp)[0]
    found = np.bincount(made[:, 1], minlength=TOKENS) / 600
    assert np.abs(found - expected).max() < 4 * np.sqrt(expected.max() / 600)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: chain(middle=LATER), "its scores hang on tokens that come later"),
        (lambda: chain(own=True), "no more of the next token than the frequencies"),
    ],
)
def test_what_scores_no_next_token_is_refused(made: Callable[[], onnx.ModelProto], why: str) -> None:
    assert why in (asked(made()).refusal(walks(40)) or "")


def test_ids_that_have_no_score_are_refused() -> None:
    assert "token ids go from -1 to 11" in (asked(chain()).refusal(np.tile([-1, 11], (4, 5))) or "")


def trained(folder: Path, model: onnx.ModelProto, arrays: dict[str, np.ndarray], **qat: Any) -> Result:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    step = {"method": "qat", "steps": 12, "batch_size": 8, "accept": "always", **qat}
    settings = {"preset": "int4_weights", "weight": {"dtype": "uint4", "block_size": 16}, "algorithms": [step]}
    quick = {"layer_samples": 1, "latency_runs": 1, "advice_seconds": 0}
    source = write_npz(folder / "calibration.npz", **arrays)
    return quantize(path, config(**settings, evaluation=quick), source, run=SilentRun(), threads=1)


def test_a_training_of_weights_alone_learns_from_the_models_own_text(tmp_path: Path) -> None:
    model, data = chain(length=str(LENGTH)), {"ids": walks(24)}
    first, again, none = (
        trained(tmp_path, model, data, generated_samples=count, zero_points="learned") for count in (16, 16, 0)
    )
    (figures,) = first.report.algorithms
    assert figures.training is not None
    assert figures.training.samples == none.report.algorithms[0].training.samples + 16  # type: ignore[union-attr]
    assert "16 sequences of 10 tokens drawn from the float model, seed 0" in figures.summary
    assert "Kullback-Leibler" in figures.summary
    assert first.model == again.model
    kept = {one.name: onnx.numpy_helper.to_array(one) for one in onnx.load_from_string(first.model).graph.initializer}
    assert any(array.shape == (WIDTH,) and not np.array_equal(array, np.ones(WIDTH)) for array in kept.values())


def test_fewer_texts_are_drawn_where_time_is_over(tmp_path: Path) -> None:
    data, step = {"ids": walks(24)}, {"generated_samples": 200, "steps": None, "seconds": 1e-3}
    (figures,) = trained(tmp_path, chain(), data, **step).report.algorithms
    assert "64 sequences of 10 tokens drawn" in figures.summary
    assert "(200 were asked for, but time was over)" in figures.summary


@pytest.mark.parametrize(("tied", "moving"), [(True, {"gain"}), (False, {"gain", "table", "head"})])
def test_gains_move_and_a_table_stays_one_with_the_head_that_reads_it(
    tmp_path: Path, tied: bool, moving: set[str]
) -> None:
    model = chain(length=str(LENGTH))
    stored = {one.name: one for one in model.graph.initializer}
    if tied:
        turned = np.ascontiguousarray(onnx.numpy_helper.to_array(stored["table"]).T)
        stored["head"].CopyFrom(onnx.numpy_helper.from_array(turned, "head"))
    draft = filled(tmp_path, model, {"ids": walks(24)}, preset="int4_weights").filled.draft
    twin = Twin(draft, device=torch.device("cpu"))
    assert set(twin.masters) == moving
    made = twin({"ids": torch.from_numpy(walks(2))})["scores"].detach().numpy()
    expected = run_onnx(draft.emitted_bytes(), {"ids": walks(2)}, optimized=False)["scores"]
    np.testing.assert_allclose(made, expected, atol=1e-4)


def test_a_network_that_reads_more_than_ids_is_refused_by_name(tmp_path: Path) -> None:
    model = make_model(
        """(int64[N,10] ids, float[N,10,1] mask) => (float[N,10,12] scores) {
            e = Gather (table, ids)
            m = Mul (e, mask)
            [head] scores = MatMul (m, head)
        }""",
        {"table": normal(12, 16), "head": normal(16, 12, seed=1)},
    )
    arrays = {"ids": walks(24), "mask": np.ones((24, LENGTH, 1), np.float32)}
    with pytest.raises(InvalidConfigError, match="2 inputs: ids, mask") as caught:
        trained(tmp_path, model, arrays, generated_samples=4)
    assert caught.value.errors[0].pointer.endswith("/algorithms/0/generated_samples")
