"""Conv1D as TensorFlow's converter writes it: what follows the Squeeze comes before it, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.quantizer.preparation.preparing import same
from tests.unit.quantizer.toolbox import make_model, normal, op_types, plan_for, step

WEIGHTS = {
    "w": normal(6, 4, 1, 3, scale=0.3),
    "w2": normal(5, 6, 1, 3, seed=1, scale=0.3),
    "b": normal(6, seed=2),
    "b_first": normal(6, 1, seed=2),
    "b2": normal(5, seed=3),
    "positions": normal(10, 1),
    "one": np.array([1]),
    "two": np.array([2]),
    "flat": np.array([0, 6, 10]),
}
CONV = "Conv<pads=[0,1,0,1]>"
INTO = "e = Unsqueeze(x, one) p = Transpose<perm=[0,3,1,2]>(e) "
OUT = "t = Transpose<perm=[0,2,3,1]>(c) s = Squeeze(t, one) "
CHAINS = {
    "channels last, as Keras": (
        f"(float[N,10,4] x) => (float[N,10,6] y) {{ {INTO} [conv] c = {CONV}(p, w) {OUT} a = Add(s, b) y = Relu(a) }}"
    ),
    "channels first": (
        f"(float[N,4,10] x) => (float[N,6,10] y) {{ u = Unsqueeze(x, two) [conv] c = {CONV}(u, w) s = Squeeze(c, two) "
        "a = Add(b_first, s) y = Relu(a) }"
    ),
    "transposed behind": (
        f"(float[N,4,10] x) => (float[N,10,6] y) {{ u = Unsqueeze(x, two) [conv] c = {CONV}(u, w) s = Squeeze(c, two) "
        "t = Transpose<perm=[0,2,1]>(s) a = Add(t, b) y = Relu(a) }"
    ),
    "a Reshape": (
        f"(float[2,4,10] x) => (float[2,6,10] y) {{ u = Unsqueeze(x, two) [conv] c = {CONV}(u, w) "
        "s = Reshape(c, flat) a = Add(s, b_first) y = Relu(a) }"
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_bias_and_activation_come_first(name: str) -> None:
    model = make_model(CHAINS[name], WEIGHTS)
    x = normal(2, 10, 4, seed=4) if "N,10,4]" in CHAINS[name] else normal(2, 4, 10, seed=4)
    prepared, proto = same(model, {"x": x})
    types = op_types(proto)
    assert "Add" not in types
    assert types[types.index("Conv") + 1] == "Relu"
    assert step(prepared, "sink_conv1d_squeeze").applied
    _, kept = same(model, {"x": x}, sink_conv1d_squeeze=False)
    assert "Add" in op_types(kept)


def test_two_of_them_make_one_quantized_region() -> None:
    second = "e2 = Unsqueeze(r, one) p2 = Transpose<perm=[0,3,1,2]>(e2) [second] d = Conv(p2, w2) "
    end = "t2 = Transpose<perm=[0,2,3,1]>(d) s2 = Squeeze(t2, one) y = Add(s2, b2)"
    text = f"(float[N,10,4] x) => (float[N,8,5] y) {{ {INTO} [conv] c = {CONV}(p, w) {OUT} a = Add(s, b) r = Relu(a) "
    _, plan = plan_for(make_model(f"{text} {second} {end} }}", WEIGHTS))
    names = [entry.op_type for entry in plan.nodes.values() if not entry.quantized]
    assert set(names) <= {"Unsqueeze", "Transpose"}  # those before the first Conv
    assert len(names) == 2


OTHERS = {
    "positions differ": (
        f"(float[N,10,4] x) => (float[N,10,6] y) {{ {INTO} [conv] c = {CONV}(p, w) {OUT} y = Add(s, positions) }}"
    ),
    "read elsewhere": (
        f"(float[N,10,4] x) => (float[N,10,6] y) {{ {INTO} [conv] c = {CONV}(p, w) {OUT} a = Add(s, b) y = Mul(a, s) }}"
    ),
    "two activations": (
        f"(float[N,10,4] x, float[N,10,6] z) => (float[N,10,6] y) {{ {INTO} c = {CONV}(p, w) {OUT} y = Add(s, z) }}"
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_cannot_come_first_stays(name: str) -> None:
    model = make_model(OTHERS[name], WEIGHTS)
    feeds = {"x": normal(2, 10, 4), "z": normal(2, 10, 6)}
    prepared, proto = same(model, {key: feeds[key] for key in (found.name for found in model.graph.input)})
    assert not step(prepared, "sink_conv1d_squeeze").applied
    assert "Add" in op_types(proto)
