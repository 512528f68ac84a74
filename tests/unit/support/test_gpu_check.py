"""make gpu-check: its script, with the CPU in the place of the GPU."""

from __future__ import annotations

import pytest

from benchmarks import gpu
from benchmarks.gpu import SECTIONS, WHOLE_SECONDS, line


def test_all_sections_end_in_time_and_a_line_says_what_was_wrong() -> None:
    assert sum(section.cpu_seconds + section.gpu_seconds for section in SECTIONS) <= WHOLE_SECONDS < 480
    section, fine = SECTIONS[0], {"seconds": 2.0, "sqnr_db": 30.0, "used": True, "peak_bytes": 2**30}
    verdict, told = line(section, {**fine, "seconds": 9.0}, fine)
    assert (verdict, told.split()) == ("PASS", ["AdaRound,", "gradients", "9.00", "2.00", "4.5", "1024", "PASS"])
    assert line(section, "more than 50 s", fine)[0] == "PASS"
    assert line(section, fine, "more than 40 s")[0] == "FAIL"
    assert line(section, fine, {**fine, "used": False})[0] == "FAIL"
    assert line(section, fine, {**fine, "sqnr_db": 28.9})[0] == "FAIL"
    assert line(section, fine, {**fine, "skipped": "no provider"})[0] == "SKIP"


def test_without_a_gpu_one_line_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu"])
    monkeypatch.setattr(gpu, "has_gpu", lambda: False)
    assert gpu.main() == gpu.NO_GPU == 2
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.long
def test_a_dry_run_passes_every_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["gpu", "--dry-run"])
    code = gpu.main()
    printed = capsys.readouterr().out
    assert (code, printed.count("PASS")) == (0, len(SECTIONS)), printed
