"""Names of nodes, files and labels are text wherever they are shown, and nothing else."""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from service.contracts.search import LayerSensitivity, Sensitivity
from service.contracts.sheets import cell
from service.logs import LineFormatter
from tests.security.corpus.models import floats
from tests.security.corpus.wire import field, model, node
from tests.support.each import each
from worker.commands.console import make_console
from worker.quantizer.intake.inspect import inspect_model

HOSTILE = [
    '=HYPERLINK("http://evil.example","x")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "  =1", "＝1", "%00", "|calc",
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "a\nERROR root forged", "a\r\nforged",
    "\x1b[2J\x1b[H", "\x1b]0;title\x07", "\x9b2J", "\u202egnp.exe", "\u2028forged", "\x85forged", "\ud800", "\0",
    "{{7*7}}", "${jndi:x}", "%s%n",
]  # fmt: skip
ANY_NAME = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30))


@given(ANY_NAME)
def test_a_cell_is_never_a_formula(name: str) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream).writerow([cell(name)])
    (row,) = csv.reader(io.StringIO(stream.getvalue(), newline=""))
    assert not row[0].lstrip(" ").startswith(tuple("=+-@\t\r\n|%＝＋－＠"))
    assert not any(ord(letter) < 0x20 and letter not in "\t\r\n" for letter in row[0])


def test_the_table_of_sensitivities_holds_no_formula() -> None:
    layer = LayerSensitivity.model_construct(
        rank=1, node="=1+1", op="@x", group="-g", parameters=1, levels={}, verified=None
    )
    level = type("Level", (), {"weight": 1.0, "activation": None, "both": 2.0})()
    found = Sensitivity.model_construct(measured="int8", layers=(layer.model_copy(update={"levels": {"int8": level}}),))
    _, row = csv.reader(io.StringIO(found.to_csv()))
    assert row[1:4] == ["'=1+1", "'@x", "'-g"]


@given(ANY_NAME)
def test_a_record_of_the_log_cannot_be_forged(name: str) -> None:
    formatter = LineFormatter("%(levelname)s %(name)s %(message)s")
    record = logging.LogRecord("quantmill", logging.WARNING, "", 0, "model %s", (name,), None)
    first, *rest = formatter.format(record).split("\n")
    assert first.startswith("WARNING quantmill model ")
    assert all(line.startswith("    ") for line in rest)
    assert (first + "".join(rest)).isprintable()


def test_a_traceback_stays_readable_and_can_forge_nothing() -> None:
    formatter = LineFormatter("%(levelname)s %(message)s")
    error = ValueError("a\nERROR root forged\x1b[2J")
    record = logging.LogRecord("x", logging.ERROR, "", 0, "fault", (), (ValueError, error, None))
    text = formatter.format(record)
    assert "    ERROR root forged\\x1b[2J" in text.split("\n")
    assert text.count("\nERROR") == 0


@pytest.mark.parametrize("terminal", [False, True])
@given(name=ANY_NAME)
def test_a_terminal_is_not_steered_by_names(terminal: bool, name: str) -> None:
    console = make_console()
    stream = io.StringIO()
    console.file = stream
    console._force_terminal = terminal
    table = Table("name")
    table.add_row(Text(name))
    console.print(Text(f"node {name} is odd", style="bold"), table)
    written = stream.getvalue()
    for harm in ("\x1b[2J", "\x1b[H", "\x1b]0", "\x07", "\x9b", "\0", "\u202e", "\x85", "\u2028"):
        assert harm not in written


@each("name", ["-2+3", "<script>alert(1)</script>", "\x1b[2J\x1b[H", "${jndi:x}", "%s%n"])
def test_a_model_may_call_its_nodes_as_it_likes(tmp_path: Path, name: str) -> None:
    """Its names go as they are into the summary, which is JSON."""
    named = node("MatMul", "x w", "y")[2:] + field(3, name)
    path = tmp_path / "model.onnx"
    path.write_bytes(model(floats("w", *[1.0] * 16, dims=(4, 4)), field(1, named)))
    assert inspect_model(path, threads=1).node_names == (name,)
