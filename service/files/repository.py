"""SQL statements for stored files: references, garbage, damage.

A stored file may be collected only if no row names it. Between the look at the rows and the removal nobody may name
it; whoever does may have put it into the store long before, and others' clocks and pauses prove nothing. So the two
exclude each other by the one thing that all processes on all hosts share, the database:

- Whoever makes rows that name files calls ``name_files`` in the same transaction: it shares the lock of the folders
  that these files lie in, and makes sure that they are there (what had gone to the trash comes back).
- Who collects takes the lock of a folder alone (``hold_folder``) and, while it holds it, looks at the rows and moves
  files to the trash.

On PostgreSQL these are advisory locks that end with the transaction, and with a connection that dies. On SQLite a write
transaction excludes every other one by itself, once it has begun. Locks on files were the other choice; not every
shared file system has them across hosts, and one that a partitioned host has lost is lost in silence, while a
transaction then fails.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CompoundSelect, delete, func, insert, literal, null, select, union, union_all, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from service.db import db_now
from service.failpoints import reach
from service.repository import owned
from service.storage import Identity, Store, StoredFileCorruptError, StoredFileMissingError
from service.tables import Artifact, DamagedFile, Dataset, Model, ModelFile, ScrubPass, Upload

# Space of our advisory locks; the other half of the key is the folder.
_LOCKS = 0x71746D66
_SCRUB = "files"
# Every column that names a stored file. One that is not here would let its files be collected: a test compares.
NAMING_COLUMNS: tuple[InstrumentedAttribute[Any], ...] = (
    ModelFile.sha256,
    Dataset.sha256,
    Dataset.thumbnails_sha256,
    Artifact.sha256,
    Upload.sha256,
)


@dataclass(frozen=True)
class NamedFile:
    """A file that some row names; its size where a row tells."""

    sha256: str
    size_bytes: int | None


@dataclass(frozen=True)
class FileName:
    """A row that names a file: what it is, its id, and the name that it knows the file by."""

    kind: str
    id: str
    name: str


def name_files(session: Session, store: Store, digests: Collection[str]) -> None:
    """Let the rows of this transaction name these files: until it ends none of them is collected.

    Args:
        session: in a write transaction.
        store: where they lie.
        digests: sha256 of each.

    Raises:
        StoredFileMissingError: one is not there: it was put into the store so long ago that it has been collected.
    """
    reach("before_files_named")
    session.connection()  # begins the transaction: on SQLite its lock has to be held before the look
    if session.get_bind().dialect.name == "postgresql":
        for folder in sorted({digest[:2] for digest in digests}):
            session.execute(select(func.pg_advisory_xact_lock_shared(_LOCKS, int(folder, 16))))
    for digest in digests:
        store.ensure(digest)
    reach("after_files_named")


def name_known(session: Session, store: Store, sha256: str) -> bool:
    """As ``name_files``, for a file that was there a moment ago; False if it is not, or is known to be damaged."""
    if session.get(DamagedFile, sha256) is not None:
        return False
    try:
        name_files(session, store, [sha256])
    except StoredFileMissingError:  # collected since then
        return False
    return True


def of_tenant(tenant_id: str) -> CompoundSelect[Any]:
    """Digest and size of each file that rows of the tenant name, equal ones once."""
    return union(
        select(ModelFile.sha256, ModelFile.size_bytes).join(Model).where(owned(Model, tenant_id)),
        select(Dataset.sha256, Dataset.size_bytes).where(owned(Dataset, tenant_id)),
        select(Artifact.sha256, Artifact.size_bytes).where(owned(Artifact, tenant_id)),
        select(Upload.sha256, Upload.size_bytes).where(owned(Upload, tenant_id), Upload.state == "complete"),
    )


def has_file(session: Session, tenant_id: str, sha256: str, size_bytes: int) -> bool:
    """Some row of the tenant names this file; what others have is nothing that it may know of."""
    files = of_tenant(tenant_id).subquery()
    statement = select(files.c.sha256).where(files.c.sha256 == sha256, files.c.size_bytes == size_bytes)
    return session.scalar(statement.limit(1)) is not None


def hold_folder(session: Session, folder: str) -> bool:
    """Until this write transaction ends, nobody names a file of ``folder`` (two hex digits) anew.

    False if somebody is about to: waiting would make others wait behind us.
    """
    session.connection()  # begins the transaction
    if session.get_bind().dialect.name != "postgresql":
        return True  # a write transaction is alone on SQLite
    return bool(session.scalar(select(func.pg_try_advisory_xact_lock(_LOCKS, int(folder, 16)))))


def named(session: Session, digests: Collection[str]) -> set[str]:
    """Which of the ``digests`` some row names."""
    found = (select(column).where(column.in_(digests)) for column in NAMING_COLUMNS)
    return set(session.scalars(union(*found)))


def list_named(session: Session, *, after: str = "", limit: int | None = None) -> list[NamedFile]:
    """Files that rows name, in the order of their digests; those behind ``after``, at most ``limit``."""
    every = union_all(
        *(
            select(column.label("sha256"), column.class_.size_bytes.label("size_bytes"))
            if column.key == "sha256"
            else select(column.label("sha256"), null().label("size_bytes"))  # the row's size is that of another file
            for column in NAMING_COLUMNS
        )
    ).subquery()
    statement = select(every.c.sha256, func.max(every.c.size_bytes)).where(every.c.sha256 > after)
    statement = statement.group_by(every.c.sha256).order_by(every.c.sha256)
    return [NamedFile(sha256, size) for sha256, size in session.execute(statement.limit(limit))]


def names_of(session: Session, sha256: str) -> list[FileName]:
    """Every row that names a file."""
    statement = union_all(
        select(literal("model"), ModelFile.model_id, ModelFile.path).where(ModelFile.sha256 == sha256),
        select(literal("dataset"), Dataset.id, Dataset.name).where(Dataset.sha256 == sha256),
        select(literal("thumbnails"), Dataset.id, Dataset.name).where(Dataset.thumbnails_sha256 == sha256),
        select(literal("artifact"), Artifact.id, Artifact.filename).where(Artifact.sha256 == sha256),
        select(literal("upload"), Upload.id, Upload.filename).where(Upload.sha256 == sha256),
    )
    return [FileName(kind, row_id, name) for kind, row_id, name in session.execute(statement)]


def note_damage(session: Session, store: Store, sha256: str, damage: str, identity: Identity | None) -> bool:
    """Note that a file is damaged: it is served to nobody until it is whole again.

    Args:
        session: in a write transaction.
        store: where the file lies.
        sha256: its digest.
        damage: what is wrong with it.
        identity: of the file that was read (None: there was none); False if another lies there now, or no row names it.
    """
    if identity != store.identity(sha256) or not named(session, [sha256]):
        return False
    clear_damaged(session, [sha256])
    session.execute(insert(DamagedFile).values(sha256=sha256, damage=damage, found_at=db_now()))
    return True


def clear_damaged(session: Session, digests: Iterable[str]) -> None:
    """Note that files are whole: they were verified, or stored again."""
    session.execute(
        delete(DamagedFile).where(DamagedFile.sha256.in_(list(digests))).execution_options(synchronize_session=False)
    )


def damaged(session: Session, limit: int | None = None) -> list[DamagedFile]:
    """Files known to be damaged, in the order of their digests."""
    statement = select(DamagedFile).order_by(DamagedFile.sha256).limit(limit)
    return list(session.scalars(statement))


def refuse_damaged(session: Session, sha256: str) -> None:
    """Let nobody have the bytes of a file that is known to be damaged; one that is missing has none.

    Raises:
        StoredFileCorruptError: it is.
    """
    found = session.get(DamagedFile, sha256)
    if found is not None and found.damage != "missing":
        raise StoredFileCorruptError(
            f"The stored file {sha256} is damaged (detected at {found.found_at:%Y-%m-%dT%H:%M:%SZ}).",
            hint="Run the job again, upload the file again, or restore the file from a backup. Inform the operator.",
            file=sha256,
        )


def begin_pass(session: Session) -> None:
    """Begin a pass of verification from the first file on."""
    now = db_now()
    session.execute(delete(ScrubPass))
    session.execute(insert(ScrubPass).values(name=_SCRUB, position="", files=0, size_bytes=0, started_at=now))


def open_pass(session: Session, *, period_seconds: float) -> str | None:
    """Digest of the last file that the pass has verified; None if it is over, and the next one is not due yet."""
    due = select(ScrubPass.started_at < db_now() - period_seconds).where(ScrubPass.name == _SCRUB)
    over = session.scalar(due)
    found = current_pass(session)
    if found is None or (found.finished_at is not None and over):
        begin_pass(session)
        return ""
    return None if found.finished_at is not None else found.position


def advance_pass(session: Session, position: str, size_bytes: int) -> None:
    """The pass has verified the file ``position``; one that another process has brought further stays there."""
    session.execute(
        update(ScrubPass)
        .where(ScrubPass.name == _SCRUB, ScrubPass.position < position)
        .values(position=position, files=ScrubPass.files + 1, size_bytes=ScrubPass.size_bytes + size_bytes)
        .execution_options(synchronize_session=False)
    )


def end_pass(session: Session) -> None:
    """The pass has seen every file that is named; what is noted of others is of no use to anybody."""
    stale = {found.sha256 for found in damaged(session)}
    clear_damaged(session, stale - named(session, stale))
    session.execute(
        update(ScrubPass)
        .where(ScrubPass.name == _SCRUB)
        .values(finished_at=db_now())
        .execution_options(synchronize_session=False)
    )


def current_pass(session: Session) -> ScrubPass | None:
    """How far verification has come; None before the first pass."""
    return session.get(ScrubPass, _SCRUB, populate_existing=True)
