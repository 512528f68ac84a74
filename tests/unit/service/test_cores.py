"""Cores by affinity and by the quotas of control groups, read off fake files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from service import cores
from service.settings import Settings


@pytest.fixture(autouse=True)
def _eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def counted(folder: Path) -> int:
    return cores.available_cores(root=folder / "fs", own=folder / "own")


def test_quotas_of_version_2(tmp_path: Path) -> None:
    assert counted(tmp_path) == 8, "without control groups affinity counts"
    put(tmp_path / "own", "0::/system.slice/one.service\n")
    group = tmp_path / "fs/system.slice/one.service/cpu.max"
    for quota, expected in (("max 100000", 8), ("150000 100000", 2), ("50000 100000", 1), ("1600000 100000", 8)):
        put(group, f"{quota}\n")
        assert counted(tmp_path) == expected, quota
    put(group, "max 100000\n")
    put(tmp_path / "fs/system.slice/cpu.max", "300000 100000\n")
    assert counted(tmp_path) == 3, "the tightest of all groups around counts"


def test_in_a_container_the_root_is_the_group(tmp_path: Path) -> None:
    put(tmp_path / "own", "0::/docker/0123\n")  # the host's path, which is not mounted here
    put(tmp_path / "fs/cpu.max", "200000 100000\n")
    assert counted(tmp_path) == 2


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("250000", 3), ("junk", 8)])
@pytest.mark.parametrize("group", ["docker/0123", ""])
def test_a_quota_of_version_1(tmp_path: Path, quota: str, expected: int, group: str) -> None:
    put(tmp_path / "own", "12:memory:/docker/0123\n4:cpu,cpuacct:/docker/0123\n0::/\n")
    put(tmp_path / "fs/cpu,cpuacct" / group / "cpu.cfs_quota_us", f"{quota}\n")
    put(tmp_path / "fs/cpu,cpuacct" / group / "cpu.cfs_period_us", "100000\n")
    assert counted(tmp_path) == expected


def test_threads_of_a_job_are_a_share_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.settings.available_cores", lambda: 6)
    assert [Settings(data_dir=tmp_path, worker_slots=slots).threads for slots in (1, 2, 4, 9)] == [6, 3, 1, 1]
    assert Settings(data_dir=tmp_path, worker_slots=2, threads=5).threads == 5
