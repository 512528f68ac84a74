"""Products in pieces, beside NumPy's."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from worker.quantizer.finetune.moments import products
from worker.quantizer.finetune.moments.products import matmul

SHAPES = [
    ((2, 3), (3, 4)),
    ((700, 300), (300, 90)),
    ((90, 300), (300, 700)),
    ((1, 500, 400), (1, 400, 200)),
    ((64, 70, 90), (64, 90, 70)),
    ((3, 40, 900), (900, 300)),
]


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
        "from worker.quantizer.finetune.moments.products import matmul\n"
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
    monkeypatch.setattr(products, "available_cores", lambda: 3)
    monkeypatch.setenv("OMP_NUM_THREADS", told)
    with products._pool.__wrapped__() as pool:
        assert pool._max_workers == expected
