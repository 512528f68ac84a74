"""Writes docs/config.md: every field of a config, every preset, target and type, made from the contracts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

from service.contracts.algorithms import Algorithm
from service.contracts.algorithms.finetune import LearningRateAdjust
from service.contracts.algorithms.precision import DistanceGoal, DropGoal, Level, PrecisionBudget, SearchBudget
from service.contracts.algorithms.training import Augmentation, Optimizer, Schedule, TrainingLoss
from service.contracts.base import Contract
from service.contracts.config import Override, QuantizationConfig
from service.contracts.dataset import InputSpec, PreprocessingSpec, RandomCalibration
from service.contracts.preparation import PreparationSpec
from service.contracts.preprocessing import (
    PLAIN_NAMES,
    TIMM,
    LogMelSpec,
    PictureSpec,
    ResizeSpec,
    SoundSpec,
    named_preprocessing,
)
from service.contracts.presets import PENDING_PRESETS, PRESETS
from service.contracts.selectors import Selector
from service.contracts.specs import (
    ActivationCalibration,
    ActivationDtype,
    ActivationSpec,
    BiasDtype,
    BiasSpec,
    TensorRange,
    WeightCalibration,
    WeightDtype,
    WeightSpec,
    bits_of,
    is_block,
)
from service.contracts.targets import TARGET_DESCRIPTIONS, TARGET_OPTIONS
from service.docs import metrics_page
from service.docs.config_words import (
    ALGORITHMS,
    AUGMENTATIONS,
    CALIBRATION,
    DATA,
    INTRO,
    LOSSES,
    NAMED,
    PREPARATION,
    PRESET_NAMES,
    SELECTORS,
    TARGETS,
    TYPES,
)
from service.docs.fields import FieldTables, code, table, text_of, title_of

Records = tuple[type[Contract], ...]


def _members(union: Any) -> Records:
    """The contracts of a union that a ``Field`` may tell apart."""
    inner = get_args(union)[0] if hasattr(union, "__metadata__") else union
    return get_args(inner)


_SELECTORS, _ALGORITHMS = _members(Selector), _members(Algorithm)
_CALIBRATIONS, _WEIGHT_CALIBRATIONS = _members(ActivationCalibration), _members(WeightCalibration)
_SPECS: Records = (ActivationSpec, WeightSpec, BiasSpec)
_OF_ALGORITHMS: Records = (Level, DropGoal, DistanceGoal, PrecisionBudget, SearchBudget, LearningRateAdjust)
_OF_TRAINING: Records = (Optimizer, Schedule)
_LOSSES, _AUGMENTATIONS = _members(TrainingLoss), _members(Augmentation)
_OF_DATA: Records = (PreprocessingSpec, InputSpec, PictureSpec, ResizeSpec, SoundSpec, LogMelSpec)
# All with a section of their own, or a row where they are selectors.
RECORDS: Records = (
    QuantizationConfig,
    *_SPECS,
    *_CALIBRATIONS,
    TensorRange,
    RandomCalibration,
    *_SELECTORS,
    Override,
    PreparationSpec,
    *_ALGORITHMS,
    *_OF_ALGORITHMS,
    *_OF_TRAINING,
    *_LOSSES,
    *_AUGMENTATIONS,
    *_OF_DATA,
)
_PLACES = {
    record.__name__: (title_of(record), f"{page}#{title_of(record).lower()}")
    for page, records in (("metrics.md", metrics_page.RECORDS), ("", RECORDS))
    for record in records
}
_WORDS = {
    frozenset(record.__name__ for record in _SELECTORS): "[selector](#selecting-nodes)",
    frozenset(record.__name__ for record in _ALGORITHMS): "[algorithm](#algorithms)",
    frozenset(record.__name__ for record in _CALIBRATIONS): "[calibration](#calibration)",
    frozenset(record.__name__ for record in _WEIGHT_CALIBRATIONS): "[calibration](#calibration), one for weights",
    frozenset(record.__name__ for record in _LOSSES): "[loss](#losses)",
    frozenset(record.__name__ for record in _AUGMENTATIONS): "[augmentation](#augmentations)",
    frozenset(record.__name__ for record in metrics_page.METRICS): "[metric](metrics.md#metrics)",
}
_TABLES = FieldTables(_PLACES, _WORDS)


def config_page() -> str:
    """The whole page, as Markdown."""
    parts = (
        INTRO,
        _section(QuantizationConfig),
        *_presets(),
        TYPES,
        _types(),
        *map(_section, _SPECS),
        CALIBRATION,
        *(_calibration(record) for record in _CALIBRATIONS),
        _section(TensorRange),
        _section(RandomCalibration),
        SELECTORS,
        _selectors(),
        _section(Override),
        *_targets(),
        PREPARATION,
        _section(PreparationSpec),
        ALGORITHMS,
        *map(_section, (*_ALGORITHMS, *_OF_ALGORITHMS, *_OF_TRAINING)),
        LOSSES,
        *(_section(record, "Loss ") for record in _LOSSES),
        AUGMENTATIONS,
        *(_section(record, "Augmentation ") for record in _AUGMENTATIONS),
        DATA,
        *map(_section, _OF_DATA),
        NAMED,
        _named(),
    )
    return "\n".join(parts).rstrip() + "\n"


def _section(record: type[Contract], word: str = "") -> str:
    return f"### {word}{_heading(record)}\n\n{text_of(record)}\n\n{_TABLES.table(record)}"


def _heading(record: type[Contract]) -> str:
    title = title_of(record)
    return title if title == record.__name__ else code(title)


def _calibration(record: type[Contract]) -> str:
    who = "For activations and weights." if record in _WEIGHT_CALIBRATIONS else "For activations."
    return f"### {_heading(record)}\n\n{text_of(record)}\n{who}\n\n{_TABLES.table(record)}"


def _presets() -> Iterator[str]:
    yield PRESET_NAMES
    yield table(
        ("preset", "recipe", "onnxruntime", "other names"),
        (
            (
                code(preset.name),
                preset.description,
                preset.execution.statement,
                ", ".join(map(code, (*preset.aliases, *preset.quark_names))),
            )
            for preset in PRESETS.values()
        ),
    )
    yield "Known in AMD Quark, and not offered:\n"
    yield table(("preset", "why"), ((code(name.upper()), why) for name, why in PENDING_PRESETS.items()))


def _types() -> str:
    offered = {
        "activations": get_args(ActivationDtype),
        "weights": get_args(WeightDtype),
        "biases": get_args(BiasDtype),
    }
    names = dict.fromkeys(name for kind in offered.values() for name in kind)
    return table(
        ("type", "bits of a value", "exponent", "for"),
        (
            (
                code(name),
                f"{bits_of(name):g}",
                "shared in blocks" if is_block(name) else "",
                ", ".join(who for who, kind in offered.items() if name in kind),
            )
            for name in names
        ),
    )


def _named() -> str:
    """The spec behind each name, as one would write it."""
    blocks = (f"{code(name)}:\n\n```json\n{_document(name)}\n```\n" for name in (*PLAIN_NAMES, TIMM))
    return "\n".join(blocks)


def _document(name: str) -> str:
    spec = named_preprocessing(name)
    parts = (f"{json.dumps(key)}: {json.dumps(value)}" for key, value in spec.items() if value)
    return "{" + ",\n ".join(parts) + "}"


def _selectors() -> str:
    return table(
        ("keys", "what it selects"),
        (
            (", ".join(map(code, record.model_fields)), " ".join(text_of(record).removeprefix("Selects ").split()))
            for record in _SELECTORS
        ),
    )


def _targets() -> Iterator[str]:
    yield TARGETS
    for target, options in TARGET_OPTIONS.items():
        yield f"### `{target}`\n\n{TARGET_DESCRIPTIONS[target]}\n"
        yield table(
            ("option", "default", "what holds when it is on"),
            ((code(option.name), "on" if option.default else "off", option.description) for option in options),
        )
