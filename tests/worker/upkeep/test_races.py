"""Whoever names files against whoever collects them, in threads that nobody holds, on either database.

``tests/api/test_collection`` has each of the moments that matter; here are many that nobody has thought of.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import delete

from service.models import repository as models
from service.storage import StoredFileMissingError
from service.tables import Dataset, Model, ModelFile, Upload
from service.uploads import repository as uploads
from service.uploads.errors import UploadNotFoundError
from tests.worker.upkeep.yard import ANY_AGE, Yard
from worker.upkeep.garbage import discard_garbage, empty_trash
from worker.upkeep.uploads import expire_uploads

ROUNDS, MOST_ROUNDS = 30, 7000
COLLECTED = ("discarded", "emptied", "expired")
CONTENTS = [b"first", b"second", b"third"]


class Race:
    """Threads over one yard; ``seen`` counts what became of their rounds."""

    def __init__(self, yard: Yard) -> None:
        self.yard, self.over = yard, threading.Event()
        self.seen: Counter[str] = Counter()
        self._counting = threading.Lock()

    def publish(self, dice: random.Random) -> None:
        """A dataset is made of a stored file, looked at, and forgotten."""
        yard, sha256 = self.yard, self.yard.put(dice.choice(CONTENTS))
        with yard.database.write() as session:
            yard.naming(session, yard.store, [sha256])
            dataset_id = yard.add_dataset(session, sha256)
        yard.check([sha256])
        with yard.database.write() as session:
            session.execute(delete(Dataset).where(Dataset.id == dataset_id))

    def model(self, dice: random.Random) -> None:
        """A model is made of an upload that may expire at any moment, looked at, and forgotten."""
        yard, data = self.yard, dice.choice(CONTENTS)
        upload_id, sha256 = yard.add_upload(), yard.put(data)
        with yard.database.write() as session:
            yard.naming(session, yard.store, [sha256])
            if uploads.complete(session, upload_id, sha256=sha256, size_bytes=len(data)) is None:
                raise UploadNotFoundError(upload_id)
        with yard.database.write() as session:
            held = uploads.hold(session, "default", upload_id)
            yard.naming(session, yard.store, [str(held.sha256)])
            file = ModelFile(path="net.onnx", sha256=held.sha256, size_bytes=len(data), is_main=True)
            model_id = models.create(session, "default", name="m", format="onnx", files=[file]).id
        yard.check([sha256])
        with yard.database.write() as session:
            session.execute(delete(ModelFile).where(ModelFile.model_id == model_id))
            session.execute(delete(Model).where(Model.id == model_id))

    def rounds(self, seed: int, act: Callable[[random.Random], None]) -> None:
        """Do it many times; who comes too late is told so, and nothing else."""
        dice = random.Random(seed)
        for number in range(MOST_ROUNDS):
            # A busy machine may run the collectors rarely: it goes on until each has found something.
            if number >= ROUNDS and all(self.seen[what] for what in COLLECTED):
                break
            try:
                act(dice)
                self._count("done")
            except (StoredFileMissingError, UploadNotFoundError):
                self._count("refused")

    def collect(self) -> None:
        """Every collector, again and again, however young things are."""
        yard = self.yard
        while not self.over.is_set():
            self._count("expired", expire_uploads(yard.database, yard.store, 10, expiry_seconds=ANY_AGE).items)
            self._count("discarded", discard_garbage(yard.database, yard.store, 10, age_seconds=ANY_AGE).items)
            self._count("emptied", empty_trash(yard.database, yard.store, 10, age_seconds=ANY_AGE).items)

    def run(self) -> None:
        """All of them at once, to the end of the rounds."""
        with ThreadPoolExecutor(5) as threads:
            collecting = [threads.submit(self.collect) for _ in range(2)]
            acts = enumerate((self.publish, self.publish, self.model))
            doing = [threads.submit(self.rounds, seed, act) for seed, act in acts]
            try:
                for one in doing:
                    one.result()
            finally:
                self.over.set()
            for one in collecting:
                one.result()

    def _count(self, what: str, times: int = 1) -> None:
        with self._counting:
            self.seen[what] += times


@pytest.mark.long
def test_nothing_that_a_row_names_goes(yard: Yard) -> None:
    race = Race(yard)
    race.run()
    assert race.seen["done"] + race.seen["refused"] >= 3 * ROUNDS
    assert min(race.seen[what] for what in ("done", *COLLECTED)) > 0, race.seen
    with yard.database.write() as session:
        session.execute(delete(Upload))
    yard.settle()
