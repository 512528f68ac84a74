"""The comparison layer by layer finds what is not as planned, at its own layer and nowhere else."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from tests.support.simulator import layer_distances
from tests.unit.quantizer.toolbox import config, data, network, quantize_model
from worker.quantizer.emit import emit
from worker.quantizer.plan.types import QuantizationPlan

FEEDS = {"x": data(4)["x"]}
ONE_STEP = 1.01


def too_far(found: dict[str, float]) -> list[str]:
    return [tensor for tensor, steps in found.items() if steps > ONE_STEP]


def weight(plan: QuantizationPlan) -> None:
    entry = plan.weights["w2"]
    entry.integers = entry.integers.copy()
    entry.integers[3] = -entry.integers[3]


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "bfp16", "mx9", "mx6"])
def test_small_floats_and_blocks_have_steps_of_their_own(dtype: str) -> None:
    prepared, plan, _ = quantize_model(network(opset=21), FEEDS, config(activation={"dtype": dtype}))
    emitted = emit(ir.from_proto(ir.to_proto(prepared.model)), plan)
    assert too_far(layer_distances(prepared.model, plan, emitted, FEEDS)) == []
    changed = plan.copy()
    weight(changed)
    assert too_far(layer_distances(prepared.model, changed, emitted, FEEDS)) == ["d"]
