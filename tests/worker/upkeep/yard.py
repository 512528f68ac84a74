"""What publishers and collectors do to a store, step by step: a step is what a process does between two pauses.

Nothing is ever too young here: what holds must hold whatever the clocks say.
"""

from __future__ import annotations

import hashlib
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import delete
from sqlalchemy.orm import Session

from service.datasets import repository as datasets
from service.db import Database
from service.files import repository as files
from service.ids import new_id
from service.models import repository as models
from service.storage import FileStore, StoredFileMissingError, file_sha256
from service.tables import Dataset, Model, ModelFile, Upload
from service.uploads import repository as uploads
from service.uploads.schemas import UploadNotFoundError
from tests.worker.reconcile.rounds import add_upload
from worker.upkeep import garbage

ANY_AGE = -1.0
Steps = Iterator[None]
Naming = Callable[[Session, FileStore, Sequence[str]], None]


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Yard:
    """One database and one store. ``fine``: others may step in between within a transaction, too."""

    database: Database
    store: FileStore
    folder: Path
    naming: Naming = files.name_files
    refused: list[str] = field(default_factory=list)

    @property
    def fine(self) -> bool:
        # on SQLite whoever writes is alone until it commits: nobody could step in
        return self.database.engine.dialect.name == "postgresql"

    def put(self, data: bytes) -> str:
        path = self.folder / f"part-{new_id('upl')}"
        path.write_bytes(data)
        return self.store.put_file(path).sha256

    def add_upload(self, *, expires_in: float = ANY_AGE) -> str:
        return add_upload(self.database, expires_in=expires_in)

    def add_dataset(self, session: Session, sha256: str) -> str:
        return datasets.create(session, "default", datasets.NewDataset(new_id("dst"), "npz", sha256, 1, {})).id

    def publish(self, data: bytes) -> Steps:
        """A worker that stores a file and then commits a row that names it."""
        sha256 = self.put(data)
        yield
        yield from self._commit(lambda session: self.add_dataset(session, sha256), [sha256])

    def alias(self, data: bytes) -> Steps:
        """A row for a file that is named already, which then goes: only one of two names is left."""
        sha256 = digest_of(data)
        with self.database.write() as session:
            try:
                self.naming(session, self.store, [sha256])
            except StoredFileMissingError:
                self.refused.append(sha256)
                return
            dataset_id = self.add_dataset(session, sha256)
        yield
        with self.database.write() as session:
            session.execute(delete(Dataset).where(Dataset.id == dataset_id))
        yield

    def complete(self, upload_id: str, data: bytes) -> Steps:
        sha256 = self.put(data)
        yield
        # in one step: whoever makes a model of it would wait for us here
        yield from self._commit(
            lambda session: uploads.complete(session, upload_id, sha256=sha256, size_bytes=len(data)),
            [sha256],
            in_one_step=True,
        )

    def make_model(self, upload_id: str) -> Steps:
        with ExitStack() as stack:
            try:
                session = stack.enter_context(self.database.write())
                upload = uploads.hold(session, "default", upload_id)
            except UploadNotFoundError:
                self.refused.append(upload_id)
                return
            if upload.sha256 is None:
                self.refused.append(upload_id)
                return
            if self.fine:
                yield
            try:
                self.naming(session, self.store, [upload.sha256])
            except StoredFileMissingError:
                self.refused.append(upload.sha256)
                return
            file = ModelFile(path="net.onnx", sha256=upload.sha256, size_bytes=1, is_main=True)
            models.create(session, "default", name=upload_id, format="onnx", files=[file])
            if self.fine:
                yield
        yield

    def expire(self) -> Steps:
        with self.database.read() as session:
            due = uploads.expired(session, 10)
        yield
        # in one step: whoever makes a model of one of them would wait for us here
        with self.database.write() as session:
            uploads.delete_expired(session, due)
        yield

    def collect(self) -> Steps:
        """One round of both collectors of stored files, each with a pause between its first look and its deed."""
        for batch in list(self.store.old_files(ANY_AGE)):
            suspects = garbage._unnamed(self.database, batch)
            yield
            if suspects:
                garbage._discard(self.database, self.store, suspects, ANY_AGE)
                yield
        garbage.empty_trash(self.database, self.store, 100, age_seconds=ANY_AGE)
        yield

    def _commit(
        self, action: Callable[[Session], object], digests: Sequence[str], *, in_one_step: bool = False
    ) -> Steps:
        with ExitStack() as stack:
            session = stack.enter_context(self.database.write())
            try:
                self.naming(session, self.store, digests)
            except StoredFileMissingError:
                self.refused.extend(digests)
                return
            action(session)
            if self.fine and not in_one_step:
                yield
        yield

    def check(self, named: Sequence[str] | None = None) -> None:
        """Every file that a row names, or each of these, lies in its place, with its bytes."""
        with self.database.read() as session:
            every = [file.sha256 for file in files.list_named(session)] if named is None else named
        for sha256 in every:
            path = self.store.path(sha256)
            assert path.is_file(), f"a row names {sha256}, which is not there"
            assert file_sha256(path) == sha256

    def settle(self) -> None:
        """After a last round nothing is left but what rows name; then nothing at all."""
        for _ in range(2):
            for _ in self.collect():
                pass
        self.check()
        with self.database.read() as session:
            named = {file.sha256 for file in files.list_named(session)}
        assert {path.name for path in self.store.blobs.rglob("*") if path.is_file()} == named
        assert list(self.store.trash.iterdir()) == []
        with self.database.write() as session:
            for table in (ModelFile, Model, Dataset, Upload):
                session.execute(delete(table))
        for folder in self.store.blobs.iterdir():
            shutil.rmtree(folder)
        self.refused.clear()


def interleave(yard: Yard, actors: Sequence[Steps], choose: Callable[[int], int]) -> list[int]:
    """Let the actors take steps until all have ended; ``choose(n)`` picks among the n left. Returns what was chosen."""
    active, path = list(actors), []
    while active:
        pick = choose(len(active))
        path.append(pick)
        try:
            next(active[pick])
        except StopIteration:
            active.pop(pick)
        yard.check()
    return path


def every_way(play: Callable[[Callable[[int], int]], None]) -> int:
    """Play through every sequence of choices; returns how many there were."""
    count, prefix, taken = 0, list[int](), list[tuple[int, int]]()

    def choose(options: int) -> int:
        pick = prefix[len(taken)] if len(taken) < len(prefix) else 0
        taken.append((pick, options))
        return pick

    while True:
        taken.clear()
        play(choose)
        count += 1
        while taken and taken[-1][0] + 1 == taken[-1][1]:
            taken.pop()
        if not taken:
            return count
        prefix[:] = [pick for pick, _ in taken]
        prefix[-1] += 1


def seeded(seed: int) -> Callable[[int], int]:
    return random.Random(seed).randrange
