"""Every option of AdaRound (solver gradient) and AdaQuant does what it says: none is taken and forgotten."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from service.contracts.algorithms import AdaQuant, LearningRateAdjust
from service.contracts.config import parse_config
from service.contracts.errors import EngineError, InvalidConfigError
from tests.unit.quantizer.finetune.gradient.gradient_benches import INT4, changed, finetuned, integers
from tests.unit.quantizer.toolbox import make_model, normal
from worker.quantizer.finetune.step import block_seed

pytestmark = pytest.mark.slow  # trains

_QUICK: dict[str, Any] = {"num_iterations": 20}
# option, value, by which method; each against the same run without it; what both share, by one of them
_EFFECTS: list[tuple[str, dict[str, Any]]] = [
    ("adaround", {"num_iterations": 60}), ("adaround", {"batch_size": 3}), ("adaround", {"learning_rate": 0.3}),
    ("adaround", {"fixed_seed": 7}), ("adaround", {"drop_ratio": 0.5}), ("adaround", {"reg_param": 3.0}),
    ("adaround", {"output_qdq": True}),
    ("adaround", {"lr_adjust": LearningRateAdjust(threshold=1e-6, learning_rate=0.5)}),
    ("adaquant", {"data_size": 5}), ("adaquant", {"learning_rate": 1e-3}), ("adaquant", {"drop_ratio": 0.5}),
    ("adaquant", {"block_wise": True}),
    ("adaquant", {"lr_adjust": LearningRateAdjust(threshold=1e-6, learning_rate=1e-2)}),
    ("adaquant", {"update_bias": False}), ("adaquant", {"update_scales": True}), ("adaquant", {"dampening": False}),
]  # fmt: skip


@pytest.fixture(scope="module")
def plain() -> dict[str, bytes]:
    return {method: changed(finetuned(method, **_QUICK)[1]).emitted_bytes() for method in ("adaround", "adaquant")}


@pytest.mark.parametrize(("method", "options"), _EFFECTS, ids=lambda value: str(value))
def test_it_changes_the_model(method: str, options: dict[str, Any], plain: dict[str, bytes]) -> None:
    _, change = finetuned(method, **{**_QUICK, **options})
    assert changed(change).emitted_bytes() != plain[method]


@pytest.mark.parametrize("level", [0, 2])  # and so is the same again
def test_where_tensors_wait_does_not_change_the_result(level: int, plain: dict[str, bytes]) -> None:
    _, change = finetuned(mem_opt_level=level, cache_limit_bytes=10**9, **_QUICK)
    assert changed(change).emitted_bytes() == plain["adaquant"]
    assert ("were kept on disk" in change.summary) == (level == 2)


@pytest.mark.parametrize(("option", "device"), [("optim_device", "cuda:63"), ("infer_device", "rocm:63")])
def test_a_device_that_is_not_there_is_an_error(option: str, device: str) -> None:
    if option == "infer_device" and "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime has a GPU")
    with pytest.raises(EngineError, match="is not available") as error:
        finetuned(**{option: device}, **_QUICK)
    assert option in (error.value.hint or "")


def test_only_the_operators_asked_for_are_finetuned() -> None:
    draft, change = finetuned(target_op_type=("MatMul",), **_QUICK)
    assert set(change.errors) == {"dense"}
    after = integers(changed(change).plan)
    for name, values in integers(draft.plan).items():
        assert np.array_equal(after[name], values) == (name != "k")


def test_selective_update_looks_at_the_output_asked_for() -> None:
    model = make_model(
        "(float[N,3,8,8] x) => (float[N,5] y, float[N,6,8,8] z) { [conv0] c = Conv<pads=[1,1,1,1]>(x, w) "
        "[relu] r = Relu(c) [conv1] z = Conv<pads=[1,1,1,1]>(r, v) [pool] p = GlobalAveragePool(r) "
        "[flat] f = Flatten(p) [dense] y = MatMul(f, k) }",
        {"w": normal(6, 3, 3, 3, scale=0.3), "v": normal(6, 6, 3, 3, seed=1, scale=0.2), "k": normal(6, 5, seed=4)},
    )
    options: dict[str, Any] = {"model": model, "selective_update": True, "num_iterations": 60}
    found = [set(finetuned(output_index=index, **options)[1].nodes) for index in (0, 1)]
    # conv1 does not reach output 0, and dense does not reach output 1
    assert "conv1" not in found[0] and "dense" in found[0]
    assert "dense" not in found[1] and "conv1" in found[1]
    with pytest.raises(InvalidConfigError, match="output_index is 2, and the model has 2 outputs: y, z"):
        finetuned(model=model, selective_update=True, output_index=2, **_QUICK)


def test_each_layer_draws_from_a_generator_of_its_own() -> None:
    spec = AdaQuant()
    assert block_seed(spec, 0, "a") == block_seed(spec, 0, "a")
    assert len({block_seed(spec, seed, name) for name in "ab" for seed in (0, 1)}) == 4
    fixed = AdaQuant(fixed_seed=3)
    assert block_seed(fixed, 0, "a") == block_seed(fixed, 1, "a")


@pytest.mark.parametrize(
    ("options", "pointer"),
    [
        ({"learning_rate": -1.0}, "/algorithms/0/learning_rate"),
        ({"optim_device": "tpu"}, "/algorithms/0/optim_device"),
        ({"target_op_type": ["Relu"]}, "/algorithms/0/target_op_type/0"),
        ({"lr_adjust": {"threshold": 1.0}}, "/algorithms/0/lr_adjust/learning_rate"),
    ],
)
def test_what_an_option_cannot_be_is_pointed_at(options: dict[str, Any], pointer: str) -> None:
    with pytest.raises(InvalidConfigError) as error:
        parse_config({**INT4, "algorithms": [{"method": "adaquant", **options}]})
    assert pointer in [problem.pointer for problem in error.value.errors]
