"""SQL statements for names, references and deletion, for models and datasets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, String, and_, cast, delete, func, literal, or_, select, union_all, update
from sqlalchemy.orm import Session
from sqlalchemy.orm.attributes import set_committed_value

from service.contracts.base import LATEST, SIGN, Reference, is_name, nearest_name, parse
from service.db import db_now
from service.ids import is_id
from service.names.kinds import DATASETS, MODELS, Named, ResourceKind, require_ready
from service.pagination import Position
from service.repository import insert_of, owned, page
from service.resources import ResourceNotFoundError
from service.tables import Alias, Dataset, Job, JobSchedule, Model, ModelFile, NounName
from service.tables.jobs import LIVE_STATES, USERS_KINDS

# Of the version that is counted next, where the name is known already.
_NEXT = {"last_version": NounName.last_version + 1}
# Of names that the one meant is looked for among, and of what an error lists.
_MOST_NAMES, MOST_TOLD = 2000, 20
# Where the templates of schedules name a model or a dataset.
_PLACES = {"model": ("model_id",), "dataset": ("calibration_dataset_id", "evaluation_dataset_id")}
# What a request names: which of both, the pointer in its body, None in its path, and the id.
NamedInput = tuple[ResourceKind[Any], str | None, str]


def next_version(session: Session, tenant_id: str, noun: str, name: str) -> int:
    """The number of a new version of the name: 1, or one above the highest that there ever was.

    Until the transaction ends, nobody else counts on: of two at once the second waits for the first.
    """
    row = {"tenant_id": tenant_id, "noun": noun, "name": name, "last_version": 1}
    keys = ("tenant_id", "noun", "name")
    statement = insert_of(session, NounName).values(row)
    counted = statement.on_conflict_do_update(index_elements=keys, set_=_NEXT).returning(NounName.last_version)
    return int(session.execute(counted).scalar_one())


def look_up(
    session: Session,
    kind: ResourceKind[Named],
    tenant_id: str,
    text: str,
    *,
    pointer: str | None = None,
    query: str | None = None,
) -> Named:
    """The tenant's model or dataset that an id or a reference names.

    Args:
        session: reads.
        kind: which of both.
        tenant_id: whose.
        text: as the request has it.
        pointer: where, in the body.
        query: which parameter of the query; without either it is the one of the path.

    Raises:
        ResourceNotFoundError: the tenant has none that is called so; says what there is.
        ResourceNotReadyError, ResourceRejectedError: ``NAME@latest``, and no version is ready: tells of the newest.
    """
    reference = None
    if is_id(text, kind.prefix):
        found = session.scalar(select(kind.table).where(kind.table.id == text, *_there(kind, tenant_id)))
    else:
        reference = parse(text)
        found = None if reference is None else _referred(session, kind, tenant_id, reference, pointer or "")
    if found is None:
        raise _nothing_called(session, kind, tenant_id, text, reference, pointer, query)
    return found


def by_id(session: Session, kind: ResourceKind[Named], tenant_id: str, resource_id: str) -> Named:
    """The tenant's model or dataset of this id: for transactions in which nothing is to be computed, as by ``look_up``.

    Raises:
        ResourceNotFoundError: the tenant has none.
    """
    found = session.scalar(select(kind.table).where(kind.table.id == resource_id, *_there(kind, tenant_id)))
    if found is None:
        raise kind.not_found(resource_id, pointer=None)
    return found


def hold(session: Session, tenant_id: str, *named: NamedInput) -> None:
    """Until the transaction ends, nobody deletes these: something is made that needs them.

    Args:
        session: in a write transaction.
        tenant_id: whose.
        named: which of both, pointer in the body and id of each; None is the parameter of the path.

    Raises:
        ResourceNotFoundError: one is not there (any more).
    """
    kinds: tuple[ResourceKind[Any], ...] = (MODELS, DATASETS)  # in this order, as by everybody: no two wait in a ring
    for kind in kinds:
        places = [(pointer, resource_id) for of, pointer, resource_id in named if of is kind]
        table, ids = kind.table, {resource_id for _, resource_id in places}
        statement = select(table.id).where(table.id.in_(ids), *_there(kind, tenant_id)).order_by(table.id)
        held = set(session.scalars(statement.with_for_update(read=True))) if ids else ids
        for pointer, resource_id in places:
            if resource_id not in held:
                raise kind.not_found(resource_id, pointer=pointer)


@dataclass(frozen=True)
class ResourceQuery:
    """Filters of a list of models or datasets.

    Args:
        status: that they have; None: any, but for ``without``.
        name: of theirs.
        sha256: of the main file.
        tags: that they have.
        search: a part of the name.
        without: a status that is left out.
    """

    status: str | None = None
    name: str | None = None
    sha256: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    search: str | None = None
    without: str | None = None


def list_page(
    session: Session,
    kind: ResourceKind[Named],
    tenant_id: str,
    query: ResourceQuery,
    *,
    after: Position | None,
    limit: int,
) -> tuple[list[Named], Position | None]:
    """One page of the tenant's models or datasets, newest first; whole summaries are not read, but outlines."""
    table = kind.table
    conditions = _there(kind, tenant_id)
    if query.search is not None:
        conditions.append(table.name.icontains(query.search, autoescape=True))
    if query.without is not None:
        conditions.append(table.status != query.without)
    if query.sha256 is not None:
        conditions.append(_has_main_file(kind, query.sha256))
    conditions += [table.tags[key].as_string() == value for key, value in query.tags.items()]
    equal = {"status": query.status, "name": query.name}
    rows, last = page(session, table, conditions, after=after, limit=limit, without=(table.summary,), **equal)
    for row in rows:
        if row.status == "ready" and row.outline is None:  # written by older code
            session.refresh(row, ["summary"])
            set_committed_value(row, "outline", row.summary)  # for this answer alone
    return rows, last


def lock(session: Session, kind: ResourceKind[Named], tenant_id: str, resource_id: str) -> Named:
    """The tenant's model or dataset; until the transaction ends, nobody else changes it, or needs it anew.

    Raises:
        ResourceNotFoundError: it is not there (any more).
    """
    statement = select(kind.table).where(kind.table.id == resource_id, *_there(kind, tenant_id)).with_for_update()
    found = session.scalar(statement, execution_options={"populate_existing": True})
    if found is None:
        raise kind.not_found(resource_id)
    return found


def change(session: Session, row: Named, **values: Any) -> None:
    """Set columns of a row that is locked; its ``row_version`` goes on."""
    table = type(row)
    changed = update(table).where(table.id == row.id)
    changed = changed.values(**values, row_version=table.row_version + 1, updated_at=db_now())
    session.execute(changed.execution_options(synchronize_session=False))
    session.refresh(row)


def alias_words(
    session: Session, kind: ResourceKind[Named], tenant_id: str, name: str, limit: int | None = None
) -> list[str]:
    """The aliases of a name, in their order."""
    statement = select(Alias.alias).where(*of_name(Alias, kind, tenant_id, name)).order_by(Alias.alias)
    return list(session.scalars(statement.limit(limit)))


def of_name(table: Any, kind: ResourceKind[Named], tenant_id: str, name: str) -> list[ColumnElement[bool]]:
    """Condition: rows of ``table`` are of the name."""
    return [owned(table, tenant_id), table.noun == kind.word, table.name == name]


def _there(kind: ResourceKind[Named], tenant_id: str) -> list[ColumnElement[bool]]:
    return [owned(kind.table, tenant_id), kind.table.deleted_at.is_(None)]


def _referred(
    session: Session, kind: ResourceKind[Named], tenant_id: str, reference: Reference, pointer: str
) -> Named | None:
    table = kind.table
    statement = select(table).where(*_there(kind, tenant_id), table.name == reference.name)
    if reference.word is None:
        return session.scalar(statement.where(table.version == reference.version))
    if reference.word != LATEST:
        stands_for = select(Alias.version).where(
            *of_name(Alias, kind, tenant_id, reference.name), Alias.alias == reference.word
        )
        return session.scalar(statement.where(table.version == stands_for.scalar_subquery()))
    newest = statement.order_by(table.version.desc()).limit(1)
    found = session.scalar(newest.where(table.status == "ready")) or session.scalar(newest)
    if found is not None:
        require_ready(kind, found, pointer=pointer)
    return found


def _nothing_called(
    session: Session,
    kind: ResourceKind[Named],
    tenant_id: str,
    text: str,
    reference: Reference | None,
    pointer: str | None,
    query: str | None,
) -> ResourceNotFoundError:
    """What to say of a text that names nothing: whether it is a bare name, and else what there is instead."""
    place: dict[str, str | None] = {"pointer": pointer, "query": query}
    if is_name(text) and _versions(session, kind, tenant_id, text, 1):
        detail = f"{text!r} is the name of {kind.word}s and does not specify a version."
        hint = f"Use {text + SIGN + LATEST!r}, a version or an alias."
        return kind.not_found(text, **place, detail=detail, hint=hint)
    name: str = text.rpartition(SIGN)[0] if reference is None else reference.name
    if not is_name(name):
        return kind.not_found(text, **place)
    versions = _versions(session, kind, tenant_id, name, MOST_TOLD)
    if not versions:
        table = kind.table
        names = select(table.name).where(*_there(kind, tenant_id)).distinct().order_by(table.name).limit(_MOST_NAMES)
        near = nearest_name(name, session.scalars(names))
        told = f"No {kind.word} is named {name!r}" + (f"; did you mean {near!r}?" if near else ".")
        return kind.not_found(text, **place, detail=told)
    words = [*alias_words(session, kind, tenant_id, name, MOST_TOLD), LATEST]
    if reference is None:
        detail = f"{text.rpartition(SIGN)[2]!r} is neither a version nor an alias of the {kind.word} {name!r}."
    else:
        detail = f"{kind.word.capitalize()} {text!r} not found."
    there = f"{name!r} has the versions {', '.join(map(str, versions))}"
    more = " and older ones" if len(versions) == MOST_TOLD else ""
    return kind.not_found(text, **place, detail=detail, hint=f"{there}{more}, and the aliases {', '.join(words)}.")


def _has_main_file(kind: ResourceKind[Named], sha256: str) -> ColumnElement[bool]:
    if kind.word == "dataset":
        return Dataset.sha256 == sha256
    return Model.files.any(and_(ModelFile.is_main, ModelFile.sha256 == sha256))


def _versions(session: Session, kind: ResourceKind[Named], tenant_id: str, name: str, limit: int) -> list[int]:
    table = kind.table
    statement = select(table.version).where(*_there(kind, tenant_id), table.name == name)
    return list(session.scalars(statement.order_by(table.version.desc()).limit(limit)))


@dataclass(frozen=True)
class Needs:
    """What needs a model or a dataset: the first of them as a word with an id or a name, and how many there are."""

    first: list[tuple[str, str]]
    count: int


def hold_any(session: Session, kind: ResourceKind[Named], tenant_id: str, named: str | Reference) -> Named | None:
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


def needs(session: Session, kind: ResourceKind[Named], tenant_id: str, row: Named) -> Needs:
    """What cannot go on without it: jobs that have not ended, aliases, schedules whose next job would be on it, new
    weights that are being validated.
    """
    resource_id = row.id
    in_template = or_(*_of_template(session, kind, row))
    parts = [
        select(literal("job"), Job.id).where(
            owned(Job, tenant_id), Job.state.in_(LIVE_STATES), _of_job(kind, resource_id)
        ),
        select(literal("alias"), Alias.alias).where(
            owned(Alias, tenant_id), (Alias.model_id if kind.word == "model" else Alias.dataset_id) == resource_id
        ),
        select(literal("schedule"), JobSchedule.name).where(owned(JobSchedule, tenant_id), in_template),
    ]
    if kind.word == "model":
        unmade = (Model.skeleton_model_id == resource_id, Model.status == "validating")
        parts.append(select(literal("model"), Model.id).where(owned(Model, tenant_id), *unmade))
    every = union_all(*(part.add_columns(literal(place)) for place, part in enumerate(parts))).subquery()
    word, name, place = every.c
    first = session.execute(select(word, name).order_by(place, name).limit(MOST_TOLD))
    count = session.scalar(select(func.count()).select_from(every)) or 0
    return Needs([(str(word), str(name)) for word, name in first], count)


def latest_schedules(session: Session, row: Named) -> list[str]:
    """Names of schedules that run on ``NAME@latest`` and mean this version now: without it they mean an older one."""
    table = type(row)
    ready = select(func.max(table.version)).where(
        owned(table, row.tenant_id), table.name == row.name, table.status == "ready", table.deleted_at.is_(None)
    )
    if session.scalar(ready) != row.version:
        return []
    places = _PLACES["model" if isinstance(row, Model) else "dataset"]
    meant = or_(*(JobSchedule.template[place].as_string() == f"{row.name}@latest" for place in places))
    statement = select(JobSchedule.name).where(owned(JobSchedule, row.tenant_id), meant).order_by(JobSchedule.name)
    return list(session.scalars(statement))


def count_jobs(session: Session, kind: ResourceKind[Named], row: Named) -> int:
    """How many jobs that users have started ran on it, or are to."""
    mine = (owned(Job, row.tenant_id), Job.kind.in_(USERS_KINDS), _of_job(kind, row.id))
    return session.scalar(select(func.count()).select_from(Job).where(*mine)) or 0


def mark_deleted(session: Session, row: Named) -> None:
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


def _of_job(kind: ResourceKind[Named], resource_id: str) -> ColumnElement[bool]:
    if kind.word == "dataset":
        columns = (Job.dataset_id, Job.calibration_dataset_id, Job.evaluation_dataset_id)
        return or_(*(column == resource_id for column in columns))
    # metrics and losses of the config may be models, too
    named = (Job.model_id == resource_id, Job.reference_model_id == resource_id)
    return or_(*named, cast(Job.config, String).contains(resource_id, autoescape=True))


def _of_template(session: Session, kind: ResourceKind[Named], row: Named) -> list[ColumnElement[bool]]:
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
    found: list[ColumnElement[bool]] = [cast(JobSchedule.template, String).contains(row.id, autoescape=True)]
    found += [JobSchedule.template[place].as_string().in_(named) for place in _PLACES[kind.word]]
    return found
