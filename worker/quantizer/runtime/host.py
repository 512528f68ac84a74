"""This host: its CPU and what that cannot do, and what else it does while something is timed."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from service.contracts.config import QuantizationConfig
from service.contracts.report import MachineLoad
from service.contracts.targets import SATURATING_CPU, target_options
from service.cores import available_cores

_CPUINFO = Path("/proc/cpuinfo")
_PAIRWISE = ("avx2", "avx512f")
# Lines of /proc/cpuinfo by which numeric libraries choose their kernels, on x86 and on Arm; and of the long line of
# features those that change how numbers are computed.
_MODEL_LINES = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU architecture", "CPU part")
_FEATURE_LINES = ("flags", "Features")
_FEATURES = ("sse4", "avx", "fma", "f16c", "amx", "asimd", "fphp", "sve", "sme", "i8mm", "bf16")
_EXACT = ("avx_vnni", "avx512_vnni", "amx_int8")


def cpu_kind(cpuinfo: str | None = None) -> dict[str, str | list[str]]:
    """What of a CPU the last bits of sums depend on: libraries have other kernels for other CPUs. Ready for JSON.

    Args:
        cpuinfo: text of /proc/cpuinfo; read from the host if None. Without that file only the architecture is known.
    """
    text = _cpuinfo() if cpuinfo is None else cpuinfo
    first, *_ = text.split("\n\n", 1)  # one CPU of many alike
    pairs = (line.partition(":") for line in first.splitlines())
    lines = {name.strip(): value.strip() for name, _, value in pairs}
    features = {word for name in _FEATURE_LINES for word in lines.get(name, "").split()}
    return {
        "machine": platform.machine(),
        **{name: lines[name] for name in _MODEL_LINES if name in lines},
        "features": sorted(word for word in features if word.startswith(_FEATURES)),
    }


def saturates_pairs(cpuinfo: str | None = None) -> bool:
    """True if 8-bit products are added in pairs of 16 bits here: x86 with AVX2 or AVX512 and without VNNI.

    Args:
        cpuinfo: text of /proc/cpuinfo; read from the host if None. Without that file nothing is known: False.
    """
    flags = set((_cpuinfo() if cpuinfo is None else cpuinfo).split())
    return any(flag in flags for flag in _PAIRWISE) and not any(flag in flags for flag in _EXACT)


def may_saturate(config: QuantizationConfig, *, saturates: bool | None = None) -> bool:
    """True if a model of full 8-bit weights is measured on a CPU that saturates their products.

    Args:
        config: of the model.
        saturates: whether the CPU does; None: this host's.
    """
    exposed = (
        config.mode in ("static", "dynamic")
        and config.target == "onnxruntime_cpu"
        and config.weight.dtype == "int8"
        and not config.weight.reduce_range
        and not target_options(config.target, config.target_options)["x86_without_vnni"]
    )
    return exposed and (saturates_pairs() if saturates is None else saturates)


def cpu_notes(config: QuantizationConfig, *, saturates: bool | None = None) -> list[str]:
    """The note for a model of full 8-bit weights that was measured on a CPU which saturates them."""
    if not may_saturate(config, saturates=saturates):
        return []
    setting = "target_options x86_without_vnni" if config.mode == "static" else "weight.reduce_range"
    return [
        f"{SATURATING_CPU} and may saturate sums of 8-bit products: figures can be better elsewhere; "
        f"for such CPUs set {setting}"
    ]


def _cpuinfo() -> str:
    return _CPUINFO.read_text() if _CPUINFO.exists() else ""


# What else the machine does while something is timed.

_PROC_STAT = Path("/proc/stat")
# Fields of /proc/stat's first line; what a guest took is part of user and nice already (man 5 proc_stat).
_FIELDS, _IDLE, _WAITING = 8, 3, 4
# The kernel counts in hundredths of a second: a share of fewer of them says little.
_LEAST_TICKS = 20


class _Ticks(NamedTuple):
    """CPU time of the whole machine since it started, in the kernel's ticks."""

    total: int
    busy: int


@dataclass(frozen=True)
class LoadMeter:
    """Tells what other processes took between its making and ``read``."""

    begun: _Ticks | None  # the machine's CPU time at the start; None: the system does not tell
    own_seconds: float  # this process's
    cores: int  # that it may use; many files tell it, and it is read often

    @staticmethod
    def start() -> LoadMeter:
        """One that counts from now on."""
        return LoadMeter(_ticks(), _own_seconds(), available_cores())

    def read(self) -> MachineLoad:
        """What the machine did so far; null where the system does not tell, or where too little time went by."""
        return MachineLoad(
            cpu_count=self.cores, load_average=_load_average(), other_busy_percent=self._other_busy_percent()
        )

    def _other_busy_percent(self) -> float | None:
        now = _ticks()
        if now is None or self.begun is None or now.total - self.begun.total < _LEAST_TICKS:
            return None
        own = (_own_seconds() - self.own_seconds) * os.sysconf("SC_CLK_TCK")
        others = now.busy - self.begun.busy - own
        return round(min(100.0, max(0.0, 100.0 * others / (now.total - self.begun.total))), 1)


def _ticks() -> _Ticks | None:
    try:
        words = _PROC_STAT.read_text().split("\n", 1)[0].split()
    except OSError:  # not Linux
        return None
    counts = [int(word) for word in words[1 : _FIELDS + 1]]
    return _Ticks(sum(counts), sum(counts) - counts[_IDLE] - counts[_WAITING])


def _own_seconds() -> float:
    used = os.times()
    return used.user + used.system


def _load_average() -> float | None:
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):  # not on this system
        return None
