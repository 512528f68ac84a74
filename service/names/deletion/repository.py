"""Statements about deleting models and datasets, and about what needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, String, cast, delete, func, literal, or_, select, union_all, update
from sqlalchemy.orm import Session

from service.contracts.references import Reference
from service.db import db_now
from service.names.kinds import Kind, Named
from service.tables import Alias, Dataset, Job, Model, ModelFile, Schedule
from service.tables.jobs import LIVE_STATES
from service.tenancy import owned

# Of what needs something, so much is named.
MOST_TOLD = 20
# Where the templates of schedules name one.
_PLACES = {"model": ("model_id",), "dataset": ("calibration_dataset_id", "evaluation_dataset_id")}


@dataclass(frozen=True)
class Needs:
    """What needs a model or a dataset: the first of them as a word with an id or a name, and how many there are."""

    first: list[tuple[str, str]]
    count: int


def hold(session: Session, kind: Kind[Named], tenant_id: str, named: str | Reference) -> Named | None:
    """The tenant's model or dataset, also one that is deleted; until the transaction ends nobody makes what needs it.

    Args:
        session: in a write transaction.
        kind: which of both.
        tenant_id: whose.
        named: its id, or a reference with a version.
    """
    table = kind.table
    if isinstance(named, Reference):
        which = [table.name == named.name, table.version == named.version]
    else:
        which = [table.id == named]
    statement = select(table).where(owned(table, tenant_id), *which).with_for_update()
    return session.scalar(statement, execution_options={"populate_existing": True})


def needs(session: Session, kind: Kind[Named], tenant_id: str, row: Named) -> Needs:
    """What cannot go on without it: jobs that have not ended, aliases, schedules whose next job would be on it, new
    weights that are being validated.
    """
    noun_id = row.id
    in_template = or_(*_of_template(session, kind, row))
    parts = [
        select(literal("job"), Job.id).where(owned(Job, tenant_id), Job.state.in_(LIVE_STATES), _of_job(kind, noun_id)),
        select(literal("alias"), Alias.alias).where(owned(Alias, tenant_id), _of_alias(kind, noun_id)),
        select(literal("schedule"), Schedule.name).where(owned(Schedule, tenant_id), in_template),
    ]
    if kind.word == "model":
        unmade = (Model.skeleton_model_id == noun_id, Model.status == "validating")
        parts.append(select(literal("model"), Model.id).where(owned(Model, tenant_id), *unmade))
    every = union_all(*(part.add_columns(literal(place)) for place, part in enumerate(parts))).subquery()
    word, name, place = every.c
    first = session.execute(select(word, name).order_by(place, name).limit(MOST_TOLD))
    count = session.scalar(select(func.count()).select_from(every)) or 0
    return Needs([(str(word), str(name)) for word, name in first], count)


def mark(session: Session, row: Named) -> None:
    """Delete a row that is held: it names no file any more, and stays for what refers to it, and for its number."""
    table, now = type(row), db_now()
    values: dict[str, Any] = {"deleted_at": now, "updated_at": now, "row_version": table.row_version + 1}
    if isinstance(row, Dataset):
        values |= {"sha256": "", "size_bytes": 0, "thumbnails_sha256": None}
    else:
        session.execute(
            delete(ModelFile).where(ModelFile.model_id == row.id).execution_options(synchronize_session=False)
        )
    session.execute(update(table).where(table.id == row.id).values(values).execution_options(synchronize_session=False))


def _of_job(kind: Kind[Named], noun_id: str) -> ColumnElement[bool]:
    if kind.word == "dataset":
        columns = (Job.dataset_id, Job.calibration_dataset_id, Job.evaluation_dataset_id)
        return or_(*(column == noun_id for column in columns))
    # metrics and losses of the config may be models, too
    named = (Job.model_id == noun_id, Job.reference_model_id == noun_id)
    return or_(*named, cast(Job.config, String).contains(noun_id, autoescape=True))


def _of_template(session: Session, kind: Kind[Named], row: Named) -> list[ColumnElement[bool]]:
    """Conditions on schedules: their templates name the row, and would name nothing without it.

    What is named by an alias is held by that.
    """
    table = type(row)
    named = [row.id, f"{row.name}@{row.version}"]
    others = select(table.id).where(
        owned(table, row.tenant_id), table.name == row.name, table.id != row.id, table.deleted_at.is_(None)
    )
    if session.scalar(others.limit(1)) is None:
        named.append(f"{row.name}@latest")
    # metrics and losses of its config may be models, too
    found: list[ColumnElement[bool]] = [cast(Schedule.template, String).contains(row.id, autoescape=True)]
    found += [Schedule.template[place].as_string().in_(named) for place in _PLACES[kind.word]]
    return found


def _of_alias(kind: Kind[Named], noun_id: str) -> ColumnElement[bool]:
    return (Alias.model_id if kind.word == "model" else Alias.dataset_id) == noun_id
