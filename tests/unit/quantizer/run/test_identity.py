"""What results depend on."""

from __future__ import annotations

import json
from pathlib import Path

import onnx

from service.contracts import config
from service.contracts.config import parse_config
from tests.unit.quantizer.toolbox import data, network, write_npz
from worker.quantizer import emit
from worker.quantizer.data import open_dataset
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.modes.devices import devices_of
from worker.quantizer.run import identity
from worker.quantizer.runtime.cpu import cpu_kind


def test_the_fingerprint_covers_the_whole_engine_and_its_contracts(monkeypatch) -> None:
    read: set[Path] = set()
    original = Path.read_bytes

    def noted(self: Path) -> bytes:
        read.add(self)
        return original(self)

    monkeypatch.setattr(Path, "read_bytes", noted)
    identity.engine_fingerprint.__wrapped__()
    assert {Path(module.__file__ or "") for module in (emit, identity, config)} <= read


X86 = """processor : 0
vendor_id : AuthenticAMD
cpu family : 25
model : 17
cpu MHz : 2400.000
flags : fpu sse4_1 avx2 fma avx512f rdtscp

processor : 1
cpu MHz : 3100.000
"""
ARM = """processor : 0
Features : fp asimd asimddp i8mm crc32
CPU implementer : 0x41
CPU part : 0xd40
"""


def test_two_kinds_of_cpu_are_told_apart() -> None:
    kinds = [
        cpu_kind(text)
        for text in (
            X86, ARM, "", X86.replace("avx512f", ""), X86.replace("AuthenticAMD", "GenuineIntel"),
            X86.replace("model : 17", "model : 1"), ARM.replace("i8mm", ""), ARM.replace("0xd40", "0xd0c"),
        )
    ]  # fmt: skip
    assert len({json.dumps(kind) for kind in kinds}) == len(kinds)


def test_hosts_of_one_kind_are_not_told_apart() -> None:
    """Whatever their clocks, and features that no product of matrices depends on."""
    assert cpu_kind(X86) == cpu_kind(X86.replace("2400.000", "1800.000").replace(" rdtscp", " ht"))


def test_work_of_another_kind_of_host_is_not_taken_over(monkeypatch, tmp_path) -> None:
    """In a folder that hosts share: the same model, data and config on another CPU or device is another run."""
    onnx.save(network(), tmp_path / "net.onnx")
    source = write_npz(tmp_path / "data.npz", **data())
    given = (
        inspect_model(tmp_path / "net.onnx", threads=1),
        open_dataset(Path(source.path), source.preprocessing),
        None,
        {},
    )
    here = identity.origin(*given, threads=2)
    assert identity.origin(*given, threads=2) == here
    monkeypatch.setattr(identity, "cpu_kind", lambda: cpu_kind(ARM))
    there = identity.origin(*given, threads=2)
    adaround = parse_config({"preset": "int8", "algorithms": [{"method": "adaround"}]})
    devices = [devices_of(adaround), ["cuda:0 NVIDIA H100", "cpu"]]
    assert len(devices[0]) == 2
    found = {identity.run_identity(adaround, origin, devices=some) for origin in (here, there) for some in devices}
    assert len(found) == 4
