"""Numerics are tested as they are on a CPU that does not saturate."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.support.exact_sums import make_sums_exact
from worker.quantizer.runtime.host import saturates_pairs

# What onnxruntime cannot compute exactly on a CPU without VNNI: its integer LSTM and MatMulInteger saturate whatever
# is asked for, and of tables with two readers and of operators of integers it makes what it then has no kernel for.
_INEXACT = re.compile(
    r"modes/test_recurrent\.py::(test_weights_are_stored_small|test_every_form_of_lstm|test_attributes_are_kept"
    r"|test_a_stack_between).*dynamic"
    r"|modes/test_tied_tables\.py::(test_a_head_in_float_reads|test_a_static_head|test_the_spec_of_embeddings)"
    r"|preparation/test_dequantize_forms\.py::(test_onnxruntime_static\[.*QOperator"
    r"|test_what_this_engine_quantized\[tied-.*int4)"
    r"|equalization/test_smooth_quant\.py::test_ranges_that_are_taken_at_run_time"
    r"|modes/test_modes\.py::test_integers_beside_float16\[tensorrt"
    r"|pipeline/test_extreme_values\.py::test_what_is_empty_on_all_data_runs\[int8_dynamic"
)
_WHY = "this CPU has no VNNI and saturates sums of 8-bit products, which onnxruntime cannot help here"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if saturates_pairs():
        for item in items:
            if _INEXACT.search(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=_WHY))


@pytest.fixture(autouse=True, scope="module")
def _exact_sums() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_sums_exact(patch)
        yield
