"""The members of a batch request: each is a job request with its place in the batch request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from service.contracts.base import below
from service.contracts.errors import FieldProblem, QuantmillError, relocated
from service.contracts.validation import field_problems
from service.jobs.schemas import JobCreate

MOST_MEMBERS = 100
# Of the configs of all members together, each as often as it is used: so much is checked and stored.
MOST_CONFIG_CHARS = 32 * 1024**2
_MODEL, _CONFIG, _PRESET = "/model_id", "/config", "/config/preset"
# Places of documents that stand in the request as they are.
_WHOLE = ("/configs/", "/members/")

_NONE: tuple[None] = (None,)
Fault = tuple[dict[str, Any], tuple[FieldProblem, ...]]


@dataclass(frozen=True)
class Coordinates:
    """Where a member stands: in the grid, or in the list."""

    member: int  # its number, from 0
    model: str  # what it names as its model
    # where its model, preset and config stand in the request, by the pointer of the job's request
    places: dict[str, str]
    preset: str | None = None  # of the grid
    config: int | None = None  # its number in the grid's configs

    def pointer(self, inner: str) -> str:
        """The place in the batch's request for one in the job's."""
        for start in (_PRESET, _CONFIG, _MODEL, ""):
            place = self.places.get(start)
            if place is not None and (inner == start or inner.startswith(start + "/")):
                # what a preset says stands nowhere in the request
                return place + inner.removeprefix(start) if place.startswith(_WHOLE) else place
        return inner

    def fault(self, error: QuantmillError) -> Fault:
        """What is wrong with the member, for people and programs, and where in the batch's request."""
        first = FieldProblem(pointer="", code=error.code, message=error.detail)
        return self.fault_of(error.code, error.detail, error.errors or (first,))

    def fault_of(self, code: str, detail: str, problems: Sequence[FieldProblem]) -> Fault:
        """As ``fault``, of problems with pointers into the job's request."""
        told = {"member": self.member, "model": self.model, "preset": self.preset, "config": self.config}
        named = tuple(
            problem.model_copy(update={"message": f"member {self.member}: {problem.message}"})
            for problem in relocated(problems, self.pointer)
        )
        return {**told, "code": code, "detail": detail}, named


@dataclass(frozen=True)
class MemberRequest:
    """A member whose request is valid, as far as the request alone can tell."""

    at: Coordinates
    body: JobCreate


def listed(members: Sequence[dict[str, Any]]) -> Iterator[tuple[Coordinates, dict[str, Any]]]:
    """The members of a list."""
    for k, document in enumerate(members):
        yield Coordinates(k, str(document.get("model_id", ""))[:64], {"": f"/members/{k}"}), document


def multiplied(
    models: Sequence[str], presets: Sequence[str], configs: Sequence[dict[str, Any]], shared: dict[str, Any]
) -> Iterator[tuple[Coordinates, dict[str, Any]]]:
    """The members of a grid: for each model all presets, for each of these all configs.

    A config is laid over the preset. With presets, none may name its own.

    Args:
        models: references.
        presets: names; none: the configs' own.
        configs: as requests have them; none: what the presets say.
        shared: fields that all members have.
    """
    member = 0
    for m, model in enumerate(models):
        for p, preset in enumerate(presets or _NONE):
            for c, config in enumerate(configs or _NONE):
                places = {_MODEL: f"/models/{m}", _CONFIG: ""}
                if preset is not None:
                    places |= {_PRESET: f"/presets/{p}", _CONFIG: f"/presets/{p}"}
                if config is not None:
                    places |= {_CONFIG: f"/configs/{c}"}
                laid = {**(config or {}), **({} if preset is None else {"preset": preset})}
                at = Coordinates(member, model, places, preset, None if config is None else c)
                yield at, {**shared, "model_id": model, "config": laid}
                member += 1


def validated(members: Iterator[tuple[Coordinates, dict[str, Any]]]) -> tuple[list[MemberRequest], list[Fault]]:
    """The members that are valid, and what is wrong with the others."""
    good: list[MemberRequest] = []
    faults: list[Fault] = []
    for at, document in members:
        try:
            good.append(MemberRequest(at, JobCreate.model_validate(document)))
        except ValidationError as error:
            problems = field_problems(error, JobCreate)
            faults.append(at.fault_of("invalid-request", problems[0].message, problems))
        except QuantmillError as error:
            faults.append(at.fault(error))
    return good, faults


def config_chars(members: Sequence[dict[str, Any]], configs: Sequence[dict[str, Any]], times: int) -> int:
    """Characters of the configs of all members, each as often as it is used; of what no config is, at least as many."""
    try:
        return len(json.dumps(members)) + times * len(json.dumps(configs))
    except RecursionError:
        return MOST_CONFIG_CHARS + 1


def clash(presets: Sequence[str], configs: Sequence[dict[str, Any]]) -> FieldProblem | None:
    """A config that names a preset, or comes from elsewhere, where the grid has presets."""
    for k, config in enumerate(configs):
        for key in ("preset", "format"):
            if presets and key in config:
                told = f"the grid has presets, which cannot be combined with a config that has its own {key}"
                return FieldProblem(pointer=below("/configs", k, key), code="preset-twice", message=told)
    return None
