"""The fields of the form for a config, read off the contract: type, choices, bounds and help of each."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal, get_args

from service.contracts.algorithms.union import ALGORITHMS
from service.contracts.base import Contract
from service.contracts.config import QuantizationConfig
from service.contracts.evaluation import EvaluationSpec, Gate
from service.contracts.metrics import Metric
from service.contracts.preparation import PreparationSpec
from service.contracts.specs import ActivationCalibration, ActivationSpec, BiasSpec, WeightCalibration, WeightSpec
from service.contracts.targets import TARGET_DESCRIPTIONS

Look = Literal["choice", "number", "text", "word", "document"]
_TAGS = ("method", "kind")
_BASICS = ("target", "mode", "format", "float_dtype", "interface", "subgraphs")
_AMOUNTS = ("calibration_samples", "outlier_ratio", "max_seconds", "seed")
_NODES = ("include", "exclude", "overrides", "tensor_ranges", "random_calibration", "target_options", "embedding")
# Of keys that do not say enough by themselves.
_LABELS: dict[tuple[str, ...], str] = {
    ("bias", "dtype"): "Bias dtype",
    ("evaluation", "gate", "max_drop"): "Largest accuracy drop",
    ("evaluation", "gate", "min_sqnr_db"): "Smallest SQNR (dB)",
    ("evaluation", "gate", "max_size_bytes"): "Largest size (bytes)",
    ("evaluation", "gate", "max_latency_ratio"): "Largest latency ratio",
    ("evaluation", "gate", "min_value"): "Smallest value",
    ("evaluation", "gate", "max_value"): "Largest value",
}
# Stands beside the preset, not in its group.
_DROP_PATH = ("evaluation", "gate", "max_drop")
# Code that a client would bring; the service runs none.
_NOT_OVER_HTTP = frozenset({"function"})


@dataclass(frozen=True)
class Slot:
    """One field of the form."""

    name: str  # of the form's field
    path: tuple[str, ...]  # keys that lead to its value, from the config, or from the entry of a list
    look: Look  # choice: one of ``options``; number; text: a number or a word; word: any text; document: JSON
    label: str  # its key, as people read it
    help: str = ""  # what it does
    bounds: str = ""  # what it may be, in words
    options: tuple[tuple[str, Any], ...] = ()  # text and value of each choice
    default: str = ""  # what holds where neither the job nor its preset says anything, as text
    words: Mapping[str, str] = field(default_factory=dict)  # what a choice means, where its text does not tell

    def text(self, value: Any) -> str:
        """A value as the field shows it."""
        if self.look == "choice":
            return next((text for text, one in self.options if one == value and type(one) is type(value)), "")
        # no document is a text: one that stands in its place is what was typed, and was no JSON
        as_it_is = isinstance(value, str) and (self.look != "text" or not _is_json(value))
        return value if as_it_is else json.dumps(value, ensure_ascii=False)

    def value(self, text: str) -> Any:
        """The value that a text stands for; a text that is no such value is left for the contract to refuse.

        Raises:
            ValueError: the field takes JSON, and this is none.
        """
        if self.look == "choice":
            return next((one for known, one in self.options if known == text), text)
        if self.look == "document":
            return parsed(text)
        return json.loads(text) if self.look in ("number", "text") and _is_json(text) else text


@dataclass(frozen=True)
class Member:
    """One of several records that a word tells apart."""

    word: str  # its ``method`` or ``kind``
    help: str  # what it does
    slots: tuple[Slot, ...]  # its own fields


@dataclass(frozen=True)
class Variant:
    """A record of which there are several: the field that chooses, and the members."""

    path: tuple[str, ...]
    chooser: Slot
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Steps:
    """A list of such records, each at most once: boxes to tick."""

    name: str
    path: tuple[str, ...]
    tag: str
    members: tuple[Member, ...]


@dataclass(frozen=True)
class Group:
    """Fields that stand together, under a title; ``folded`` ones are shown on demand."""

    title: str
    slots: tuple[Slot, ...] = ()
    unions: tuple[Variant, ...] = ()
    steps: Steps | None = None
    folded: bool = False


def parsed(text: str) -> Any:
    """A JSON document.

    Raises:
        ValueError: it is none; says where.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise ValueError("not JSON of a config: nested too deeply") from None


def _is_json(text: str) -> bool:
    try:
        return not isinstance(json.loads(text), dict | list)
    except (json.JSONDecodeError, RecursionError):
        return False


@cache
def groups() -> tuple[Group, ...]:
    """All groups, in the order of the page."""
    whole = tuple(_slots(QuantizationConfig, (), "c:"))
    by_name = {slot.path[0]: slot for slot in whole}
    calibrations = {
        part: _union((part, "calibration"), union)
        for part, union in (("activation", ActivationCalibration), ("weight", WeightCalibration))
    }
    judged = tuple(slot for slot in _slots(EvaluationSpec, ("evaluation",), "c:") if slot.path[1:] != ("gate",))
    return (
        Group("Target and mode", tuple(by_name[name] for name in _BASICS), folded=True),
        Group("Activations", _spec(ActivationSpec, "activation"), (calibrations["activation"],), folded=True),
        Group(
            "Weights", (*_spec(WeightSpec, "weight"), *_spec(BiasSpec, "bias")), (calibrations["weight"],), folded=True
        ),
        Group(
            "Algorithms", steps=_steps("algorithm", ("algorithms",), "method", tuple(ALGORITHMS.values())), folded=True
        ),
        Group("Quality gate", tuple(slot for slot in _gate() if slot.path != _DROP_PATH), folded=True),
        Group("Metrics", steps=_steps("metric", ("evaluation", "metrics"), "kind", _members(Metric)), folded=True),
        Group("Samples and seed", tuple(by_name[name] for name in _AMOUNTS), folded=True),
        Group("Evaluation limits", tuple(one for one in judged if one.path[1] != "metrics"), folded=True),
        Group("Nodes and ranges", tuple(by_name[name] for name in _NODES), folded=True),
        Group("Preparation", tuple(_slots(PreparationSpec, ("preparation",), "c:")), folded=True),
    )


@cache
def largest_drop() -> Slot:
    """The field of the quality gate that most jobs need."""
    found = next(slot for slot in _gate() if slot.path == _DROP_PATH)
    return replace(
        found, help="In points of the first metric, such as 1 for 86 % to 85 %. Leave blank for no limit.", bounds=""
    )


def _gate() -> Iterator[Slot]:
    return _slots(Gate, ("evaluation", "gate"), "c:")


def every_slot() -> Iterator[Slot]:
    """All fields but those of unions and lists, whose place depends on what is chosen."""
    yield largest_drop()
    for group in groups():
        yield from group.slots


@cache
def labels() -> dict[str, str]:
    """What every field of a config is called where it does not stand among those of its group."""
    found: dict[str, str] = {}
    for group in groups():
        found |= {slot.name: f"{slot.label} ({group.title})" for slot in group.slots}
        found |= {one.chooser.name: f"{one.chooser.label} ({group.title})" for one in group.unions}
        members = [member for one in group.unions for member in one.members]
        for member in (*members, *(group.steps.members if group.steps else ())):
            found |= {slot.name: f"{slot.label} ({member.word})" for slot in member.slots}
    return {**found, largest_drop().name: largest_drop().label}


def _spec(record: type[Contract], part: str) -> tuple[Slot, ...]:
    own = tuple(slot for slot in _slots(record, (part,), "c:") if slot.path[-1] != "calibration")
    return tuple(slot for slot in own if len(slot.options) != 1)  # of one choice there is none


def _union(path: tuple[str, ...], union: Any) -> Variant:
    members = _members(union)
    words = tuple((_word(one, "method"), _word(one, "method")) for one in members)
    name = "c:/" + "/".join(path)
    told = "How ranges are found."
    chooser = Slot(f"{name}/method", (*path, "method"), "choice", "Calibration", told, options=words)
    return Variant(path, chooser, tuple(_member(one, "method", f"{name}@") for one in members))


def _steps(name: str, path: tuple[str, ...], tag: str, records: tuple[type[Contract], ...]) -> Steps:
    offered = [one for one in records if _word(one, tag) not in _NOT_OVER_HTTP]
    return Steps(name, path, tag, tuple(_member(one, tag, f"{name}:") for one in offered))


def _member(record: type[Contract], tag: str, prefix: str) -> Member:
    word = _word(record, tag)
    told = " ".join(inspect.cleandoc(record.__doc__ or "").split("\n\n")[0].split())
    return Member(word, told, tuple(_slots(record, (), f"{prefix}{word}")))


def _members(union: Any) -> tuple[type[Contract], ...]:
    inner = get_args(union)[0] if hasattr(union, "__metadata__") else union
    return get_args(inner)


def _word(record: type[Contract], tag: str) -> str:
    return str(record.model_fields[tag].default)


def _slots(record: type[Contract], path: tuple[str, ...], prefix: str) -> Iterator[Slot]:
    properties = record.model_json_schema()["properties"]
    for key, info in record.model_fields.items():
        if (key in _TAGS and len(get_args(info.annotation)) == 1) or key in ("schema_version", "preset"):
            continue
        schema, at = properties[key], (*path, key)
        slot = Slot(
            prefix + "".join(f"/{part}" for part in at),
            at,
            _look(schema),
            _LABELS.get(at, key.replace("_", " ").capitalize()),
            help=str(schema.get("description", "")),
            bounds=_bounds(schema),
            options=_options(schema),
            words=TARGET_DESCRIPTIONS if key == "target" else {},
        )
        if info.is_required():
            yield slot
        else:
            default = plain(info.get_default(call_default_factory=True, validated_data={}))
            yield replace(slot, default=slot.text(default))


def plain(value: Any) -> Any:
    """A default as JSON has it."""
    if isinstance(value, Contract):
        return value.model_dump(mode="json")
    return [plain(one) for one in value] if isinstance(value, tuple) else value


def _look(schema: dict[str, Any]) -> Look:
    parts = schema.get("anyOf", [schema])
    if _options(schema):
        return "choice"
    if any(part.get("type") in ("array", "object") or "$ref" in part or "oneOf" in part for part in parts):
        return "document"
    if len(parts) == 1:
        return "word" if parts[0].get("type") == "string" else "number"
    return "text"


def _options(schema: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    """The values, if there are but a few."""
    found: list[Any] = []
    for part in schema.get("anyOf", [schema]):
        if "enum" in part:
            found += part["enum"]
        elif "const" in part:
            found.append(part["const"])
        elif part.get("type") == "boolean":
            found += [True, False]
        elif part.get("type") == "null":
            found.append(None)
        else:
            return ()
    return tuple((value if isinstance(value, str) else json.dumps(value), value) for value in found)


_WORDS = (("minimum", "at least"), ("exclusiveMinimum", "above"), ("maximum", "at most"), ("exclusiveMaximum", "below"))


def _bounds(schema: dict[str, Any]) -> str:
    told = []
    for part in schema.get("anyOf", [schema]):
        told += [f"{word} {json.dumps(part[key])}" for key, word in _WORDS if key in part]
        if part.get("type") == "null":
            told.append("or null")
        if "const" in part and len(schema.get("anyOf", ())) > 1:
            told.append(f"or {part['const']}")
    return ", ".join(told)
