"""The comparison layer by layer finds what is not as planned, at its own layer and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx_ir as ir
import pytest

from tests.support.simulator import layer_distances
from tests.unit.quantizer.toolbox import config, data, network, quantize_model
from worker.quantizer.emit import emit
from worker.quantizer.plan.types import QuantizationPlan

FEEDS = {"x": data(4)["x"]}
ONE_STEP = 1.01


def distances(change: Callable[[QuantizationPlan], None]) -> dict[str, float]:
    """Of a network that is emitted as planned, from a plan that was changed afterwards."""
    prepared, plan, _ = quantize_model(network(), FEEDS, config())
    emitted = emit(ir.from_proto(ir.to_proto(prepared.model)), plan)
    changed = plan.copy()
    change(changed)
    return layer_distances(prepared.model, changed, emitted, FEEDS)


def too_far(found: dict[str, float]) -> list[str]:
    return [tensor for tensor, steps in found.items() if steps > ONE_STEP]


def weight(plan: QuantizationPlan) -> None:
    entry = plan.weights["w2"]
    entry.integers = entry.integers.copy()
    entry.integers[3] = -entry.integers[3]


def bias(plan: QuantizationPlan) -> None:
    entry = plan.biases["stem"]
    entry.integers = entry.integers + 5000


def scale(plan: QuantizationPlan) -> None:
    entry = plan.activations["d"]
    entry.quantization = replace(entry.quantization, scale=entry.quantization.scale * np.float32(1.01))


def test_what_differs_is_found_where_it_is_and_nothing_where_all_is_as_planned() -> None:
    found = distances(lambda plan: None)
    assert len(found) > 6 and too_far(found) == []
    for change, where in ((weight, "d"), (bias, "r"), (scale, "d")):
        assert too_far(distances(change)) == [where]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfp16", "mx9", "mx6"])
def test_small_floats_and_blocks_have_steps_of_their_own(dtype: str) -> None:
    prepared, plan, _ = quantize_model(network(opset=21), FEEDS, config(activation={"dtype": dtype}))
    emitted = emit(ir.from_proto(ir.to_proto(prepared.model)), plan)
    assert too_far(layer_distances(prepared.model, plan, emitted, FEEDS)) == []
    changed = plan.copy()
    weight(changed)
    assert too_far(layer_distances(prepared.model, changed, emitted, FEEDS)) == ["d"]
