"""New weights in a known graph: what fits is put in its place, what does not is named."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto
from safetensors.numpy import save_file

from service.contracts.errors import StateError
from tests.unit.quantizer.toolbox import make_model
from worker.quantizer.intake.made import fill
from worker.quantizer.intake.state import STATE_NAMES, STATE_TRANSPOSED, apply_state

RANDOM = np.random.default_rng(0)
WEIGHT, BIAS = "head.weight", "head.bias"


def skeleton(path: Path, *, weight: np.ndarray | None = None, **marks: dict[str, str]) -> Path:
    """y = (x [n, 3] @ head.weight [3, 2] + head.bias [2]) reshaped by an integer constant."""
    weight = np.ones((3, 2), np.float32) if weight is None else weight
    kind = "float16" if weight.dtype == np.float16 else "float"
    arrays = {WEIGHT: weight, BIAS: np.zeros(weight.shape[1], weight.dtype), "shape": np.array([-1, 2], np.int64)}
    body = f'h = MatMul(x, "{WEIGHT}") s = Add(h, "{BIAS}") y = Reshape(s, shape)'
    model = ir.from_proto(make_model(f"({kind}[n,3] x) => ({kind}[n,2] y) {{ {body} }}", arrays, ir_version=9))
    for name, metadata in marks.items():
        model.graph.initializers[name.replace("__", ".")].metadata_props.update(metadata)
    ir.save(model, path)
    return path


def state(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    """A state that fits, with changes; None takes a tensor away, __ in a name is a dot."""
    found: dict[str, np.ndarray | None] = {
        WEIGHT: RANDOM.normal(size=(3, 2)).astype(np.float32),
        BIAS: RANDOM.normal(size=2).astype(np.float32),
    }
    found |= {name.replace("__", "."): value for name, value in changes.items()}
    return {name: value for name, value in found.items() if value is not None}


@pytest.fixture
def apply(tmp_path):
    """Fills a skeleton; gives the function of the new file."""

    def run(tensors: dict[str, np.ndarray], model: Path | None = None):
        save_file(tensors, tmp_path / "new.safetensors")
        model = model or skeleton(tmp_path / "net.onnx")
        (made,) = fill(model, tmp_path / "new.safetensors", tmp_path / "made.onnx")
        session = onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])
        return lambda x: session.run(None, {"x": x})[0]

    return run


def faults(caught: pytest.ExceptionInfo[StateError]) -> dict[str, str]:
    return {fault.pointer: fault.code for fault in caught.value.errors}


def test_every_fault_is_named_at_once(apply):
    odd = state(head__weight=np.ones((2, 3), np.float32), head__bias=None)
    with pytest.raises(StateError) as caught:
        apply({**odd, "a/b": np.ones(3, np.float32)})
    assert faults(caught) == {
        "/state/head.weight": "tensor-shape",
        "/state/head.bias": "tensor-missing",
        "/state/a~1b": "tensor-extra",
    }
    assert caught.value.code == "state-mismatch"
    assert all(word in caught.value.detail for word in ("'head.weight'", "[2, 3]", "'head.bias'", "'a/b'"))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("bias", "code"),
    [
        (np.ones(2, np.int32), "tensor-dtype"),
        (np.array([1, np.nan], np.float32), "tensor-not-finite"),
        (np.array([np.inf, 1], np.float32), "tensor-not-finite"),
        (np.array([1e200, 1]), "tensor-range"),
        (np.array([1, 70000], np.float32), "tensor-range"),  # for a graph of float16
    ],
)
def test_a_tensor_that_cannot_be_used_is_named(apply, tmp_path, bias, code):
    half = code == "tensor-range" and bias.dtype == np.float32
    model = skeleton(tmp_path / "half.onnx", weight=np.ones((3, 2), np.float16)) if half else None
    with pytest.raises(StateError, match="70000" if half else "head.bias") as caught:
        apply(state(head__bias=bias), model)
    assert faults(caught) == {"/state/head.bias": code}


def test_infinity_may_stand_where_the_graph_has_it(tmp_path):
    mask = np.array([[0, -np.inf], [1, 1], [1, 1]], np.float32)
    model = ir.load(skeleton(tmp_path / "net.onnx", weight=mask))
    save_file(state(head__weight=mask * 2), tmp_path / "new.safetensors")
    apply_state(model, tmp_path / "new.safetensors")
    np.testing.assert_array_equal(model.graph.initializers[WEIGHT].const_value.numpy(), mask * 2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_floats_of_another_type_are_converted(apply, dtype):
    tensors = {name: value.astype(dtype) for name, value in state().items()}
    x = RANDOM.normal(size=(2, 3)).astype(np.float32)
    expected = x @ tensors[WEIGHT].astype(np.float32) + tensors[BIAS].astype(np.float32)
    np.testing.assert_allclose(apply(tensors)(x), expected, rtol=1e-5, atol=1e-6)


def test_only_counters_of_batch_norm_are_left_out(apply):
    apply(state(bn__num_batches_tracked=np.array(7, np.int64)))
    for counter in (np.array(7, np.float32), np.array([7], np.int64)):
        with pytest.raises(StateError) as caught:
            apply(state(bn__num_batches_tracked=counter))
        assert faults(caught) == {"/state/bn.num_batches_tracked": "tensor-extra"}


def test_a_transposed_matrix_is_not_guessed(apply, tmp_path):
    linear = RANDOM.normal(size=(2, 3)).astype(np.float32)
    with pytest.raises(StateError) as caught:
        apply(state(head__weight=linear))
    assert faults(caught) == {"/state/head.weight": "tensor-shape"}
    model = skeleton(tmp_path / "told.onnx", head__weight={STATE_TRANSPOSED: "true"})
    tensors, x = state(head__weight=linear), RANDOM.normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(apply(tensors, model)(x), x @ linear.T + tensors[BIAS], rtol=1e-5, atol=1e-6)


def test_marks_say_what_a_state_has_to_hold(apply, tmp_path):
    marks = {STATE_NAMES: json.dumps(["head.weight", "tied.weight"])}
    model = skeleton(tmp_path / "marked.onnx", head__weight=marks)
    weight = RANDOM.normal(size=(3, 2)).astype(np.float32)
    x = RANDOM.normal(size=(4, 3)).astype(np.float32)
    for names in (["head.weight"], ["tied.weight"], ["head.weight", "tied.weight"]):
        np.testing.assert_allclose(apply(dict.fromkeys(names, weight), model)(x), x @ weight, rtol=1e-5, atol=1e-6)
    with pytest.raises(StateError) as caught:
        apply({"head.weight": weight, "tied.weight": weight + 1}, model)
    assert faults(caught) == {"/state/tied.weight": "tensor-tied"}
    with pytest.raises(StateError) as caught:
        apply(state(), model)
    assert faults(caught) == {"/state/head.bias": "tensor-extra"}
    for mark in ("no json", "[]", '"head.weight"', '["head.weight", 1]'):
        with pytest.raises(StateError, match="not a list of names"):
            apply(state(), skeleton(tmp_path / "odd.onnx", head__weight={STATE_NAMES: mark}))


@pytest.mark.parametrize("length", [None, 0, 9, 1 << 62])
def test_what_is_no_state_is_refused(tmp_path, length):
    data = b"PK\x03\x04 no safetensors" if length is None else length.to_bytes(8, "little") + b'{"a": [}}'
    (tmp_path / "new.safetensors").write_bytes(b"" if length == 0 else data)
    with pytest.raises(StateError, match="safetensors") as caught:
        fill(skeleton(tmp_path / "net.onnx"), tmp_path / "new.safetensors", tmp_path / "made.onnx")
    assert [fault.pointer for fault in caught.value.errors] == ["/files/0"]
    assert not (tmp_path / "made.onnx").exists()


def test_external_weights_become_part_of_the_new_file(tmp_path):
    model = ir.load(skeleton(tmp_path / "net.onnx"))
    ir.save(model, tmp_path / "large.onnx", external_data="large.data", size_threshold_bytes=0)
    tensors = state()
    save_file(tensors, tmp_path / "new.safetensors")
    assert fill(tmp_path / "large.onnx", tmp_path / "new.safetensors", tmp_path / "m.onnx") == [tmp_path / "m.onnx"]
    found = ir.load(tmp_path / "m.onnx").graph.initializers[WEIGHT].const_value
    np.testing.assert_array_equal(found.numpy(), tensors[WEIGHT])
    assert found.dtype == TensorProto.FLOAT
