"""What contracts declare is done by the engine, and the other way round."""

from __future__ import annotations

from typing import get_args

from service.contracts.algorithms import Algorithm
from service.contracts.specs import NUMBER_TYPES
from service.contracts.targets import TARGET_OPTIONS
from worker.quantizer.modes.registry import STEPS
from worker.quantizer.numerics.blocks import BLOCK_FORMATS, FLOATS
from worker.quantizer.plan.targets import TARGETS


def test_every_algorithm_of_the_contract_has_a_step_and_names_only_others_that_there_are() -> None:
    declared = {record.model_fields["method"].default: record for record in get_args(get_args(Algorithm)[0])}
    assert set(declared) == set(STEPS)
    assert all(set(record.excludes) <= set(declared) and record.place >= 0 for record in declared.values())


def test_every_option_of_a_target_switches_a_rule_and_every_rule_has_an_option() -> None:
    for name, target in TARGETS.items():
        switched = {option for rule in target.rules for option in rule.names}
        assert switched == {option.name for option in TARGET_OPTIONS[name]}, name


def test_number_types_of_the_contract_are_those_of_the_engine() -> None:
    kinds = {name: made.kind for name, made in NUMBER_TYPES.items()}
    assert {name for name, kind in kinds.items() if kind == "block"} == set(BLOCK_FORMATS)
    assert {name for name, kind in kinds.items() if kind.startswith("float")} - {"float32"} == set(FLOATS)
