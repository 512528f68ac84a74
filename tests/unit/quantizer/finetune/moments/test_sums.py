"""Layers that are solved for the sum behind them, and products in pieces beside NumPy's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest

from service.contracts.algorithms import AdaRound
from tests.unit.quantizer.search.benches import residual_blocks, toolkit_for
from tests.unit.quantizer.toolbox import config, make_model, normal, run_onnx, sqnr_db
from worker.quantizer.finetune import solvers as moments_solver
from worker.quantizer.finetune.moments import rounding
from worker.quantizer.finetune.moments.problem import LayerProblem, Patches, residual_add, solve
from worker.quantizer.finetune.moments.rounding import Lattice, matmul
from worker.quantizer.finetune.step import FinetuneStep
from worker.quantizer.ops.linear import product_view

TYPES = "(float[N,4,5,5] x) => (float[N,4,5,5] y)"
CONV = "c = Conv<pads=[1,1,1,1]>(x, w) "


def graph(body: str, **weights: np.ndarray) -> ir.Graph:
    model = make_model(f"{TYPES} {{ {body} }}", {"w": normal(4, 4, 3, 3), **weights})
    return ir.serde.deserialize_model(model).graph


@pytest.mark.parametrize(
    ("body", "other"),
    [
        (CONV + "y = Add(c, x)", "x"),
        (CONV + "b = Add(c, k) y = Add(b, x)", "x"),  # a constant comes before
        (CONV + "y = Add(c, k)", None),
        (CONV + "y = Add(c, c)", None),
        (CONV + "r = Relu(c) y = Add(r, x)", None),
        (CONV + "s = Add(c, x) y = Mul(s, c)", None),  # another reads the result too
        (CONV + "y = Mul(c, x)", None),
    ],
)
def test_what_counts_as_a_sum(body: str, other: str | None) -> None:
    found = graph(body, k=normal(1, 4, 1, 1))
    conv = next(node for node in found if node.op_type == "Conv")
    added = residual_add(conv)
    assert (None if added is None else added.other.name) == other


@pytest.mark.parametrize("groups", [1, 2])
def test_results_stand_where_their_patches_do(groups: int) -> None:
    weight, x = normal(6, 4 // groups, 3, 3, seed=1), normal(3, 4, 7, 7, seed=2)
    model = make_model(
        f"(float[N,4,7,7] x) => (float[N,6,3,3] y) {{ y = Conv<strides=[2,2], group={groups}>(x, w) }}", {"w": weight}
    )
    (node,) = ir.serde.deserialize_model(model).graph
    linear, made = product_view(node), run_onnx(model, {"x": x})["y"]
    chosen = np.array([0, 4, 8, 9, 17, 26])
    patches, mask = linear.patches(x, chosen)
    assert mask is None
    np.testing.assert_allclose(linear.results(made, chosen), linear.matrix(weight) @ patches, rtol=1e-4, atol=1e-5)


def test_results_of_a_product_of_matrices() -> None:
    weight, x = normal(4, 6, seed=1), normal(2, 5, 4, seed=2)
    model = make_model("(float[N,5,4] x) => (float[N,5,6] y) { y = MatMul(x, w) }", {"w": weight})
    (node,) = ir.serde.deserialize_model(model).graph
    linear, chosen = product_view(node), np.array([1, 6, 9])
    made = run_onnx(model, {"x": x})["y"]
    np.testing.assert_allclose(linear.results(made, chosen)[0], (x.reshape(-1, 4)[chosen] @ weight).T, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("relu", [True, pytest.param(False, marks=pytest.mark.long)])
def test_shortcuts_that_are_off_are_made_up_for(relu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = residual_blocks(relu=relu)
    held_back = normal(64, 3, 8, 8, seed=7)
    found = {}
    for told in (True, False):
        if not told:
            monkeypatch.setattr(moments_solver, "residual_add", lambda node: None)
        settings = config(preset="plain", weight={"dtype": "int4", "granularity": "per_tensor"})
        draft, toolkit = toolkit_for(model, settings, x=normal(48, 3, 8, 8, seed=3))
        change = FinetuneStep(AdaRound()).apply(draft, toolkit)
        assert change.draft is not None and "down1" in change.nodes
        twin = run_onnx(change.draft.emitted_bytes(), {"x": held_back})["y"]
        found[told] = sqnr_db(run_onnx(model, {"x": held_back})["y"], twin)
    assert found[True] != found[False]
    assert found[True] > found[False] - 0.5


def test_limits_of_the_sum_are_those_of_each_patch() -> None:
    """What Relu cuts off behind the sum costs nothing, though the layer's result alone is far from its target."""
    matrix = np.eye(2, dtype=np.float32)[None]
    x = np.array([[[1.0, -1.0, 2.0, -2.0], [0.5, 1.5, -0.5, 1.0]]], np.float32)
    beside = np.full((1, 2, 4), -100.0, np.float32)
    lattice = Lattice(np.full((1, 2, 2), 0.5, np.float32), *(np.full((1, 2, 2), end, np.float32) for end in (-1, 1)))
    zero, top = np.zeros((1, 2, 1), np.float32), np.full((1, 2, 1), np.inf, np.float32)
    problem = LayerProblem(
        matrix, lattice, np.zeros((1, 2, 2), np.float32), np.zeros((1, 2), np.float32), None, (zero, top)
    )
    assert solve(problem, Patches(x, matrix @ x, beside)).before == 0.0
    assert solve(problem, Patches(x, matrix @ x)).before > 0.0


SHAPES = [
    ((2, 3), (3, 4)), ((700, 300), (300, 90)), ((90, 300), (300, 700)), ((1, 500, 400), (1, 400, 200)),
    ((64, 70, 90), (64, 90, 70)), ((3, 40, 900), (900, 300)),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SHAPES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_in_pieces_is_the_product(one: tuple[int, ...], other: tuple[int, ...], dtype: type) -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal(one).astype(dtype), random.standard_normal(other).astype(dtype)
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64))
    tolerance = 1e-4 if dtype is np.float32 else 1e-11
    found = matmul(a, b)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, expected, atol=tolerance)
    target = np.full(expected.shape, np.nan, dtype)
    assert matmul(a, b, out=target) is target
    np.testing.assert_array_equal(target, found)


def test_a_part_of_an_array_may_take_the_product() -> None:
    random = np.random.default_rng(1)
    a, b = random.standard_normal((1, 300, 300)), random.standard_normal((1, 300, 400))
    whole = np.zeros((1, 300, 1000))
    matmul(a, b, out=whole[:, :, 100:500])
    np.testing.assert_allclose(whole[:, :, 100:500], a @ b, atol=1e-11)
    assert not whole[:, :, :100].any() and not whole[:, :, 500:].any()


@pytest.mark.slow
def test_the_bits_do_not_depend_on_the_number_of_threads() -> None:
    program = (
        "import numpy as np, hashlib\n"
        "from worker.quantizer.finetune.moments.rounding import matmul\n"
        "r = np.random.default_rng(0)\n"
        "a, b = (r.standard_normal((700, 700)).astype(np.float32) for _ in range(2))\n"
        "print(hashlib.sha256(matmul(a, b).tobytes()).hexdigest())\n"
    )
    made = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": sys.path[0] or "."},
            check=True,
            stdout=subprocess.PIPE,
        ).stdout
        for threads in ("1", "7")
    }
    assert len(made) == 1


@pytest.mark.parametrize(("told", "expected"), [("", 3), ("0", 3), ("2", 2), ("64", 3)])
def test_a_container_has_as_many_threads_as_its_quota(monkeypatch, told: str, expected: int) -> None:
    """A machine of many cores may give a container few: more threads would only be stopped in turn."""
    monkeypatch.setattr(rounding, "available_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    with rounding._pool.__wrapped__() as pool:
        assert pool._max_workers == expected
