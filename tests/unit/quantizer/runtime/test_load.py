"""What else the machine does, read from files of the kernel's form."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.quantizer.runtime import load
from worker.quantizer.runtime.load import LoadMeter

# user nice system idle iowait irq softirq steal guest guest_nice
FORM = "cpu  {user} 0 {system} {idle} {wait} 0 0 {steal} 999 999\ncpu0 1 2 3 4\n"


def stat(path: Path, user: int, system: int, idle: int, wait: int, steal: int) -> None:
    path.write_text(FORM.format(user=user, system=system, idle=idle, wait=wait, steal=steal))


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(load, "_PROC_STAT", tmp_path / "stat")
    monkeypatch.setattr(load.os, "sysconf", lambda name: 100)
    return tmp_path / "stat"


def test_others_are_what_is_busy_and_not_our_own(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = iter([1.0, 1.5])  # 50 ticks of our own
    monkeypatch.setattr(load, "_own_seconds", lambda: next(own))
    stat(proc, 1000, 100, 5000, 10, 0)
    meter = LoadMeter.start()
    stat(proc, 1100, 130, 5050, 20, 10)  # 140 of 200 busy
    assert meter.read().other_busy_percent == pytest.approx(45.0)


def test_too_short_a_time_tells_nothing(proc: Path) -> None:
    stat(proc, 1000, 100, 5000, 10, 0)
    meter = LoadMeter.start()
    stat(proc, 1010, 100, 5000, 10, 0)
    assert meter.read().other_busy_percent is None


def test_a_system_that_does_not_tell(proc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(load.os, "getloadavg")
    found = LoadMeter.start().read()
    assert (found.other_busy_percent, found.load_average) == (None, None)
    assert found.cpu_count >= 1
