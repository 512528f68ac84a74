"""Reasons: codes that programs rely on, each declared once, all of them told on one page."""

from __future__ import annotations

import subprocess
import sys

import pytest

from service.contracts import reason
from service.contracts.reason import Reason, ReasonKind, declare, declared
from tests.support.source import ROOT


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reason, "_declared", {})


def test_a_kind_fills_details_in_and_keeps_the_rest() -> None:
    kind = declare("no-kernel", "{target} has no kernel for {op_type}", hint="Leave it.", by_design=True)
    made = kind(target="cpu", op_type="Where")
    assert made == Reason("no-kernel", "cpu has no kernel for Where", "Leave it.", True)
    assert str(made) == made.words
    assert kind.saying("0 of 3") == Reason("no-kernel", "0 of 3", "Leave it.", True)
    with pytest.raises(KeyError, match="op_type"):
        kind(target="cpu")


def test_a_code_is_declared_once_and_in_kebab_case() -> None:
    declare("b", "second")
    declare("a-1", "first")
    assert declared() == [ReasonKind("a-1", "first"), ReasonKind("b", "second")]
    for code in ("b", "", "No-Kernel", "no_kernel", "-a", "a--b"):
        with pytest.raises(ValueError, match="kebab"):
            declare(code, "words")


@pytest.mark.slow
def test_the_page_of_the_docs_is_current() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "worker.quantizer.pages", "reasons"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert made == (ROOT / "docs" / "reasons.md").read_text(), (
        "run: python -m worker.quantizer.pages reasons > docs/reasons.md"
    )
    assert "| `no-integer-kernel` | {target} has no integer kernel for {op_type} | Replace" in made
