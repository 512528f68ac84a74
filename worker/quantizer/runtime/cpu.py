"""What this host's CPU cannot do, for notes alone: what is quantized, and how, does not depend on the host."""

from __future__ import annotations

from pathlib import Path

from service.contracts.config import QuantizationConfig
from service.contracts.targets import target_options

_CPUINFO = Path("/proc/cpuinfo")
_PAIRWISE = ("avx2", "avx512f")
_EXACT = ("avx_vnni", "avx512_vnni", "amx_int8")


def saturates_pairs(cpuinfo: str | None = None) -> bool:
    """True if 8-bit products are added in pairs of 16 bits here: x86 with AVX2 or AVX512 and without VNNI.

    Args:
        cpuinfo: text of /proc/cpuinfo; read from the host if None. Without that file nothing is known: False.
    """
    if cpuinfo is None:
        cpuinfo = _CPUINFO.read_text() if _CPUINFO.exists() else ""
    flags = set(cpuinfo.split())
    return any(flag in flags for flag in _PAIRWISE) and not any(flag in flags for flag in _EXACT)


def cpu_notes(config: QuantizationConfig, *, saturates: bool | None = None) -> list[str]:
    """The note for a model of full 8-bit weights that was measured on a CPU which saturates them."""
    exposed = (
        config.mode == "static"
        and config.target == "onnxruntime_cpu"
        and config.weight.dtype == "int8"
        and not config.weight.reduce_range
        and not target_options(config.target, config.target_options)["x86_without_vnni"]
    )
    if not exposed or not (saturates_pairs() if saturates is None else saturates):
        return []
    return [
        "this host's CPU has no VNNI and may saturate sums of 8-bit products: figures can be better elsewhere; "
        "for such CPUs set target_options x86_without_vnni"
    ]
