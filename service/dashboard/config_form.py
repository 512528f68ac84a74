"""A config as the fields of a form and back: what is left blank is as the preset has it, and is not in the config.

A form is rendered from a document, and only the fields that differ from what was rendered change the document: what the
form cannot show stays as it was written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from service.contracts.algorithms.union import ALGORITHMS
from service.contracts.base import below
from service.contracts.config import QuantizationConfig
from service.contracts.errors import FieldProblem
from service.contracts.presets import DEFAULT_PRESET, RECOMMENDED, find_preset
from service.dashboard.config_fields import Member, Slot, Steps, Variant, every_slot, groups, plain

PRESET, JSON = "c:/preset", "config"
Document = dict[str, Any]


@dataclass
class Values:
    """What the fields hold, as text."""

    texts: dict[str, str] = field(default_factory=dict)  # by the name of the field; blank ones are not there
    # entries of the lists, in their order, by the list's name; None: it cannot be shown by boxes
    ticked: dict[str, list[str] | None] = field(default_factory=dict)


def preset_of(document: Document) -> str:
    """The name of the document's preset; the default one where it has none that there is."""
    given = document.get("preset", DEFAULT_PRESET)
    found = find_preset(given) if isinstance(given, str) else None
    return DEFAULT_PRESET if found is None else found.name


def preset_config(name: str) -> Document:
    """What a preset resolves to."""
    return QuantizationConfig(preset=name).model_dump(mode="json")


def values_of(document: Document) -> Values:
    """What the form shows of a document."""
    base = preset_config(preset_of(document))
    values = Values({PRESET: preset_of(document)})
    for slot in every_slot():
        _put(values, slot, document, slot.path)
    for union in _unions():
        _put(values, union.chooser, document, union.chooser.path)
        member = _chosen(union, values, base)
        for slot in () if member is None else member.slots:
            _put(values, slot, document, (*union.path, *slot.path))
    for steps in _lists():
        given = _at(document, steps.path)
        entries = _at(base, steps.path) if given is None else given
        words = [one.get(steps.tag) if isinstance(one, Mapping) else None for one in _list(entries)]
        members = {member.word: member for member in steps.members}
        if len(set(map(str, words))) != len(words) or not all(word in members for word in words):
            values.ticked[steps.name] = None
            continue
        values.ticked[steps.name] = [str(word) for word in words]
        for entry in _list(given):
            for slot in members[entry[steps.tag]].slots:
                _put(values, slot, entry, slot.path)
    return values


def applied(document: Document, posted: Mapping[str, list[str]]) -> tuple[Document, tuple[FieldProblem, ...]]:
    """The document with what was changed in its form.

    Args:
        document: that the form was rendered from.
        posted: all fields that were sent, blank ones too; a field that is not there has not changed.

    Returns:
        The new document, and what in the fields is no value at all.
    """
    was, result, problems = values_of(document), deepcopy(document), list[FieldProblem]()
    wanted = _preset(posted.get(PRESET, []), was.texts[PRESET])
    if wanted != was.texts[PRESET]:
        result["preset"] = wanted
    for slot in every_slot():
        if _changed(slot, was, posted):
            _set(result, slot.path, slot, _text(posted, slot.name), problems, below("", *slot.path))
    base = preset_config(preset_of(result))
    for union in _unions():
        _apply_union(result, union, was, posted, base, problems)
    for steps in _lists():
        _apply_steps(result, steps, was, posted, base, problems)
    return result, tuple(problems)


def _preset(sent: Sequence[str], was: str) -> str:
    """The preset that was chosen: a card of a recommended one or an entry of the list, whichever has changed."""
    card = next((one for one in sent if one in RECOMMENDED), "")
    listed = next((one for one in sent if one and one not in RECOMMENDED), "")
    if was in RECOMMENDED:
        return listed or card or was
    return card if card and listed in ("", was) else listed or was


def field_of(pointer: str, document: Document) -> str:
    """The form's field for a pointer into the config; that of the JSON text where there is none of its own."""
    path = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    if path[:1] == ["preset"]:
        return PRESET
    base = preset_config(preset_of(document))
    for steps in _lists():
        depth = len(steps.path)
        if tuple(path[:depth]) == steps.path:
            entries = _list(_at(document, steps.path) or _at(base, steps.path))
            place = int(path[depth]) if len(path) > depth and path[depth].isdecimal() else len(entries)
            word = entries[place].get(steps.tag) if place < len(entries) and isinstance(entries[place], Mapping) else ""
            member = next((one for one in steps.members if one.word == word), None)
            return _nearest(() if member is None else member.slots, path[depth + 1 :]) or steps.name
    for union in _unions():
        depth = len(union.path)
        if tuple(path[:depth]) == union.path:
            member = _chosen(union, values_of(document), base)
            return _nearest(() if member is None else member.slots, path[depth:]) or union.chooser.name
    return _nearest(tuple(every_slot()), path) or JSON


def differing(config: Document) -> Document:
    """The shortest document that resolves to this resolved config."""
    name = preset_of(config)
    short = {"preset": name, **_difference(preset_config(name), config)}
    for document in (short, {**short, **{key: config[key] for key in ("algorithms",) if key in short}}):
        if QuantizationConfig.model_validate(document).model_dump(mode="json") == config:
            return document
    return dict(config)


def shown_defaults(document: Document) -> dict[str, str]:
    """What holds where a field is left blank, as text, by the field's name."""
    base = preset_config(preset_of(document))
    found = {slot.name: slot.text(_at(base, slot.path)) for slot in every_slot()}
    for union in _unions():
        found[union.chooser.name] = union.chooser.text(_at(base, union.chooser.path))
        own = _at(base, union.path)
        for member in union.members:
            entry = own if own["method"] == member.word else {}
            found |= {slot.name: slot.text(entry[slot.path[0]]) for slot in member.slots if slot.path[0] in entry}
    for steps in _lists():
        members = {member.word: member for member in steps.members}
        for entry in _at(base, steps.path):
            slots = members[entry[steps.tag]].slots
            found |= {slot.name: slot.text(entry[slot.path[0]]) for slot in slots if slot.path[0] in entry}
    return found


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> Document:
    found: Document = {}
    for key, new in after.items():
        old = before.get(key)
        if key == "algorithms" and new != old:
            found[key] = [_short_step(entry, old or ()) for entry in new]
        elif isinstance(old, Mapping) and isinstance(new, Mapping) and old.get("method") == new.get("method"):
            inner = _difference(old, new)
            if inner:
                found[key] = inner
        elif new != old:
            found[key] = new
    return found


def _short_step(entry: Document, presets: Any) -> Document:
    """An algorithm without what its method has anyway."""
    method = entry["method"]
    known = next((one for one in presets if one["method"] == method), None)
    if known is None:
        fields = ALGORITHMS[method].model_fields.items()
        known = {
            key: plain(one.get_default(call_default_factory=True, validated_data={}))
            for key, one in fields
            if not one.is_required()
        }
    return {"method": method, **{key: value for key, value in entry.items() if known.get(key) != value}}


def _apply_union(
    result: Document,
    union: Variant,
    was: Values,
    posted: Mapping[str, list[str]],
    base: Document,
    problems: list[FieldProblem],
) -> None:
    chooser = union.chooser
    word = _text(posted, chooser.name) if chooser.name in posted else was.texts.get(chooser.name, "")
    now = Values({chooser.name: word})
    member = _chosen(union, now, base)
    slots = () if member is None else member.slots
    if not any(_changed(slot, was, posted) for slot in (chooser, *slots)):
        return
    _remove(result, union.path)
    if now.texts[chooser.name]:
        _set(result, chooser.path, chooser, now.texts[chooser.name], problems, "")
    for slot in slots:
        text = _text(posted, slot.name)
        if text:
            path = (*union.path, *slot.path)
            _set(result, path, slot, text, problems, below("", *path))


def _apply_steps(
    result: Document,
    steps: Steps,
    was: Values,
    posted: Mapping[str, list[str]],
    base: Document,
    problems: list[FieldProblem],
) -> None:
    before = was.ticked[steps.name]
    if steps.name not in posted or before is None:
        return
    ticked = _in_order(before, [word for word in dict.fromkeys(posted[steps.name]) if word])
    members = {member.word: member for member in steps.members}
    slots = [slot for word in ticked if word in members for slot in members[word].slots]
    if ticked == before and not any(_changed(slot, was, posted) for slot in slots):
        return
    entries: list[Document] = []
    for place, word in enumerate(ticked):
        entry: Document = {steps.tag: word}
        for slot in members[word].slots if word in members else ():
            if text := _text(posted, slot.name):
                _set(entry, slot.path, slot, text, problems, below("", *steps.path, place, *slot.path))
        entries.append(entry)
    as_preset = [one[steps.tag] for one in _at(base, steps.path)] == ticked and all(len(one) == 1 for one in entries)
    _remove(result, steps.path)
    if not as_preset:
        _place(result, steps.path, entries)


def _in_order(before: list[str], ticked: list[str]) -> list[str]:
    """What is ticked, in the order in which it is to run: boxes come in that of the page.

    What stood there stays in its order; what is new goes where it undoes nothing that was done before it.
    """
    found = [word for word in before if word in ticked]
    for word in (word for word in ticked if word not in before):
        rank = _rank(word)
        found.insert(next((k for k, other in enumerate(found) if _rank(other) > rank), len(found)), word)
    return found


def _rank(word: str) -> float:
    return ALGORITHMS[word].place if word in ALGORITHMS else math.inf


def _unions() -> Iterator[Variant]:
    for group in groups():
        yield from group.unions


def _lists() -> Iterator[Steps]:
    yield from (group.steps for group in groups() if group.steps is not None)


def _chosen(union: Variant, values: Values, base: Document) -> Member | None:
    word = values.texts.get(union.chooser.name) or _at(base, union.chooser.path)
    return next((one for one in union.members if one.word == word), None)


def _changed(slot: Slot, was: Values, posted: Mapping[str, list[str]]) -> bool:
    return slot.name in posted and _text(posted, slot.name) != was.texts.get(slot.name, "").strip()


def _text(posted: Mapping[str, list[str]], name: str) -> str:
    return posted.get(name, [""])[0].strip()


def _put(values: Values, slot: Slot, document: Any, path: tuple[str, ...]) -> None:
    if _has(document, path):
        text = slot.text(_at(document, path))
        if text:
            values.texts[slot.name] = text


def _set(
    document: Document, path: tuple[str, ...], slot: Slot, text: str, problems: list[FieldProblem], pointer: str
) -> None:
    if not text:
        _remove(document, path)
        return
    try:
        value = slot.value(text)
    except ValueError as error:
        problems.append(FieldProblem(pointer=pointer, code="json-invalid", message=str(error)))
        value = text
    _place(document, path, value)


def _has(document: Any, path: tuple[str, ...]) -> bool:
    inner = document
    for key in path:
        if not isinstance(inner, Mapping) or key not in inner:
            return False
        inner = inner[key]
    return True


def _at(document: Any, path: tuple[str, ...]) -> Any:
    inner = document
    for key in path:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    return inner


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _place(document: Document, path: tuple[str, ...], value: Any) -> None:
    inner = document
    for key in path[:-1]:
        if not isinstance(inner.get(key), dict):
            inner[key] = {}
        inner = inner[key]
    inner[path[-1]] = value


def _remove(document: Document, path: tuple[str, ...]) -> None:
    """Take a value away, and what holds nothing else."""
    if not _has(document, path):
        return
    _at(document, path[:-1]).pop(path[-1])
    if len(path) > 1 and not _at(document, path[:-1]):
        _remove(document, path[:-1])


def _nearest(slots: tuple[Slot, ...], path: list[str]) -> str | None:
    found = [slot for slot in slots if tuple(path[: len(slot.path)]) == slot.path]
    return max(found, key=lambda slot: len(slot.path)).name if found else None
