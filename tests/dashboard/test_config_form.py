"""A config in the form and back, as a browser sends it: boxes come in the order of the page, whatever runs first."""

from __future__ import annotations

from typing import Any

from service.contracts.algorithms.union import ALGORITHMS, in_order
from service.contracts.config import parse_config
from service.contracts.presets import PRESETS
from service.dashboard.config_fields import Slot, groups
from service.dashboard.config_form import PRESET, applied, values_of
from tests.support.each import each


def sent(document: dict[str, Any], **changes: list[str]) -> dict[str, list[str]]:
    """All fields of the page that shows a document."""
    values = values_of(document)
    boxes = {name: ["", *sorted(words)] for name, words in values.ticked.items() if words is not None}
    return {**{name: [text] for name, text in values.texts.items()}, **boxes, **changes}


def list_name() -> str:
    (name,) = [name for name, words in values_of({"preset": "npu_int8"}).ticked.items() if words and len(words) > 1]
    return name


@each("preset", sorted(PRESETS))
def test_every_preset_goes_through_the_form_unchanged(preset: str) -> None:
    assert applied({"preset": preset}, sent({"preset": preset})) == ({"preset": preset}, ())
    # chosen on a page that still shows the boxes of the default
    changed, problems = applied({}, sent({}, **{PRESET: [preset]}))
    assert not problems
    assert changed == {"preset": preset} or preset == values_of({}).texts[PRESET]
    parse_config(changed)


def test_the_order_of_what_was_taken_over_stays() -> None:
    steps = [{"method": "cross_layer_equalization"}, {"method": "bias_correction"}]
    document = {"preset": "xint8", "algorithms": steps}
    assert applied(document, sent(document)) == (document, ())
    name = list_name()
    field = next(one for one in settings() if one.endswith("bias_correction/mode"))
    changed, _ = applied(document, sent(document, **{field: ["full"]}))
    assert [one["method"] for one in changed["algorithms"]] == ["cross_layer_equalization", "bias_correction"]
    fewer, _ = applied(document, sent(document, **{name: ["", "bias_correction"]}))
    assert [one["method"] for one in fewer["algorithms"]] == ["bias_correction"]


def settings() -> dict[str, Slot]:
    """The settings of the algorithms."""
    members = [member for group in groups() if group.steps for member in group.steps.members]
    return {slot.name: slot for member in members for slot in member.slots}


def test_no_value_is_one_to_choose_where_it_is_allowed() -> None:
    assert ("null", None) in settings()["algorithm:mixed_precision/combination"].options


@each("method", ["cross_layer_equalization", "adaround", "smooth_quant"])
def test_what_is_ticked_anew_runs_where_it_undoes_nothing(method: str) -> None:
    document = {"preset": "xint8", "algorithms": [{"method": "bias_correction"}]}
    boxes = sorted(["bias_correction", method])
    changed, problems = applied(document, sent(document, **{list_name(): ["", *boxes]}))
    methods = [one["method"] for one in changed["algorithms"]]
    assert not problems
    assert methods == in_order(boxes)
    assert all(method in ALGORITHMS for method in methods)
