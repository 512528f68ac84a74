"""The records of operators: what ONNX knows by these names, and one of them through a whole quantization."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from service.contracts.algorithms.finetune import FINETUNED_OPS
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_model, run_onnx, sqnr_db
from worker.quantizer.finetune.blocks import single_layers
from worker.quantizer.ops.channels import CHANNEL_FLOWS, Kind
from worker.quantizer.ops.table import OPERATORS, Family, Reconstruction, Sign, named, operator
from worker.quantizer.plan.types import Role


def test_every_record_is_of_an_operator_of_onnx_and_fits_its_schema() -> None:
    for op_type, record in OPERATORS.items():
        assert onnx.defs.has(op_type), op_type
        schema = onnx.defs.get_schema(op_type)
        assert {name for name, _ in record.attributes.values()} <= schema.attributes.keys(), op_type
        for index in (record.divisor, record.bias, *record.parameters, *record.trained):
            assert index is None or index < schema.max_input, op_type


def test_defaults_of_attributes_are_those_of_onnx() -> None:
    for op_type, record in OPERATORS.items():
        for name, default in record.attributes.values():
            stated = onnx.helper.get_attribute_value(onnx.defs.get_schema(op_type).attributes[name].default_value)
            wanted = stated.decode() if isinstance(stated, bytes) else stated
            assert wanted == pytest.approx(default) if isinstance(default, float) else wanted == default, op_type


def test_an_operator_without_a_record_claims_nothing() -> None:
    nothing = operator("Det")
    assert nothing.family is Family.OTHER
    assert nothing.sign is Sign.UNKNOWN
    assert nothing.reconstruction is None


def test_records_agree_with_the_flow_of_channels() -> None:
    kinds = (Kind.MOVED, Kind.POOLED, Kind.REPEATED)
    first = {op_type for op_type, flow in CHANNEL_FLOWS.items() if flow.kind in kinds}
    assert first <= set(named(lambda record: record.sign is Sign.AS_FIRST))
    assert set(named(lambda record: record.family in (Family.REARRANGEMENT, Family.SHUFFLE))) < CHANNEL_FLOWS.keys()


def test_what_the_contract_finetunes_is_what_is_reconstructed() -> None:
    tuned = named(lambda record: record.reconstruction in (Reconstruction.WEIGHT, Reconstruction.NORM))
    assert sorted(tuned) == sorted(FINETUNED_OPS)


@pytest.mark.parametrize("text", ["Swish<alpha=1.5>(t)", "Softplus(t)"])
def test_an_activation_function_goes_through_a_whole_quantization(text: str) -> None:
    model = make_model(
        f"(float[N,3,9,9] x) => (float[N,4,5,5] y) {{ t = Conv(x, w) [act] u = {text} y = Conv(u, v) }}",
        {"w": normal(4, 3, 3, 3, scale=0.4), "v": normal(4, 4, 3, 3, scale=0.3, seed=2)},
        opset=24,
        ir_version=11,
    )
    operators = [node.op_type for node in model.graph.node]
    images = {"x": normal(32, 3, 9, 9)}
    prepared, plan, emitted = quantize_model(model, images, config(target="qnn"))
    assert plan.nodes["act"].role is Role.UNARY
    first, _ = single_layers(prepared.graph, plan, ["Conv"])
    assert [node.op_type for node in first.nodes] == ["Conv", operators[1]]
    expected, found = run_onnx(model, images)["y"], run_onnx(emitted, images, optimized=False)["y"]
    assert np.isfinite(found).all()
    assert sqnr_db(expected, found) > 25
