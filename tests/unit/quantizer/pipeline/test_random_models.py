"""Models that give other outputs each time that they run cannot be compared with anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.contracts.errors import UnsupportedModelError
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file


@pytest.mark.parametrize("mode", ["static", "dynamic", "float16"])
def test_a_model_that_draws_random_numbers_is_refused_as_such(tmp_path: Path, mode: str) -> None:
    model = make_model(
        "(float[N,4] x) => (float[N,A] y) { h = Gemm(x, w) "
        "half = Constant<value = float {0.5}>() yes = Constant<value = bool {1}>() y = Dropout(h, half, yes) }",
        {"w": normal(4, 64)},
    )
    with pytest.raises(UnsupportedModelError, match="output 'y' of the model is another each time"):
        quantize_file(tmp_path, model, {"x": normal(6, 4)}, config(mode=mode))
