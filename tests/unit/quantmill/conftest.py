"""Shared by the tests of the Python doors. Numerics are tested as they are on a CPU that does not saturate."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator

import pytest

from tests.support.exact_sums import make_sums_exact


@pytest.fixture(scope="session", autouse=True)
def _read_translations_once() -> Iterator[None]:
    """torch's exporter parses the source of some 500 translations for every export, which takes most of a small one."""
    from torch.onnx._internal import _lazy_import

    module = importlib.import_module(_lazy_import.onnxscript_apis._name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "get_torchlib_ops", functools.cache(module.get_torchlib_ops))
        yield


@pytest.fixture(autouse=True, scope="module")
def _exact_sums() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        make_sums_exact(patch)
        yield
