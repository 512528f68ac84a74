"""AMD Quark's presets of mixed precision. Quark's own set no threshold and lower every layer; here a goal decides."""

from __future__ import annotations

from typing import Any

from service.contracts.presets.base import Preset
from service.contracts.presets.finetuned import finetuning_notes, legacy_parameters

MIXED_GOAL: dict[str, Any] = {"kind": "distance", "metric": "sqnr", "limit": 25.0}
MIXED_GOAL_NOTE = (
    "Quark sets no threshold and lowers every layer; here the least sensitive layers are lowered as long as the output "
    "keeps an SQNR of 25 dB. Another goal, such as a drop of top-1, is given in algorithms."
)
_PERCENTILE: dict[str, Any] = {"method": "percentile", "percentile": 99.9999}


def _level(activation: dict[str, Any], weight: dict[str, Any]) -> dict[str, Any]:
    return {"activation": activation, "weight": {"granularity": "per_tensor", **weight}}


def _mixed(name: str, description: str, high: dict[str, Any], low: dict[str, Any], bias: str) -> Preset:
    mixing = {"method": "mixed_precision", "high": high, "low": low, "goal": MIXED_GOAL}
    settings = {**high, "bias": {"dtype": bias}, "algorithms": [mixing]}
    return Preset(
        name=name, description=description, settings=settings, quark_names=(name.upper(),), notes=(MIXED_GOAL_NOTE,)
    )


def _finetuned(base: Preset) -> Preset:
    settings = {**base.settings, "algorithms": [*base.settings["algorithms"], legacy_parameters("adaquant")]}
    name = f"{base.name}_adaquant"
    return Preset(
        name=name,
        description=f"As {base.name}, then AdaQuant.",
        settings=settings,
        quark_names=(name.upper(),),
        notes=(*base.notes, *finetuning_notes("adaquant")),
    )


_BF16 = _level({"dtype": "bfloat16"}, {"dtype": "bfloat16"})
_BF16_MIXED = (
    _mixed(
        "bf16_mixed_bfp16",
        "bfloat16, and 16-bit block floating point where the output allows it.",
        _BF16,
        _level({"dtype": "bfp16"}, {"dtype": "bfp16"}),
        "float32",
    ),
    _mixed(
        "bf16_mixed_mxint8",
        "bfloat16, and int8 in blocks with a shared power-of-two scale where the output allows it.",
        _BF16,
        _level({"dtype": "mxint8"}, {"dtype": "mxint8"}),
        "float32",
    ),
)
MIXED_PRESETS = (
    _mixed(
        "s16s16_mixed_s8s8",
        "int16 activations and weights, and int8 ones where the output allows it; Percentile 99.9999.",
        _level({"dtype": "int16", "symmetric": False, "calibration": _PERCENTILE}, {"dtype": "int16"}),
        _level({"dtype": "int8", "symmetric": False, "calibration": _PERCENTILE}, {"dtype": "int8"}),
        "int32",
    ),
    *_BF16_MIXED,
    *(_finetuned(preset) for preset in _BF16_MIXED),
)
