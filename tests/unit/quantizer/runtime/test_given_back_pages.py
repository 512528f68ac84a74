"""Memory of mapped files is given back only while what keeps them mapped is held: else it may be another's by then."""

from __future__ import annotations

import mmap
import re
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from tests.support.exact_sums import make_sums_as_here
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.quantizer.runtime.test_filed_weights import WIDTH, filed_model
from worker.quantizer.graph import mapped, sizes
from worker.quantizer.runtime.session import Session, owner_of

SIZE = 1 << 20
X = np.ones((1, WIDTH), np.float32)


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "WEIGHT_BYTES", WIDTH)
    make_sums_as_here(monkeypatch)  # exact ones take other weights than those in the file


@contextmanager
def stopped_before(monkeypatch: pytest.MonkeyPatch, name: str, path: Path) -> Iterator[None]:
    """Another thread gives back the memory of a file, and stands still just before ``name`` does so."""
    original: Callable[..., None] = getattr(mapped, name)
    arrived, released = threading.Event(), threading.Event()

    def halting(owner: object, *where: int) -> None:
        arrived.set()
        assert released.wait(PATIENCE_SECONDS)
        original(owner, *where)

    monkeypatch.setattr(mapped, name, halting)
    thread = threading.Thread(target=mapped.forget_files, args=[{path}])
    thread.start()
    assert arrived.wait(PATIENCE_SECONDS)
    try:
        yield
    finally:
        released.set()
        thread.join()
        monkeypatch.setattr(mapped, name, original)


def test_a_mapping_ends_only_after_its_memory_was_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(SIZE))
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.know(path, view)
    kept = weakref.ref(view)
    with stopped_before(monkeypatch, "_give_back", path):
        (before,) = ranges(path)
        del view
        assert kept() is not None
        fresh = [mmap.mmap(-1, SIZE) for _ in range(8)]  # would lie where the mapping was
        for one in fresh:
            one.write(b"\1" * SIZE)
        assert ranges(path) == [before]
    assert [one[:] == b"\1" * SIZE for one in fresh] == [True] * 8
    assert kept() is None
    assert ranges(path) == []


def test_a_session_ends_only_after_its_memory_was_given_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    session = Session(filed_model(tmp_path, activations=False)[0], threads=1)
    kept = weakref.ref(owner_of(session._session))
    with stopped_before(monkeypatch, "_give_back_of", path):
        before = ranges(path, "rw-p")
        assert before
        del session
        fresh = [mmap.mmap(-1, WIDTH * WIDTH) for _ in range(8)]
        for one in fresh:
            one.write(b"\1" * WIDTH * WIDTH)
        assert ranges(path, "rw-p") == before
    assert [one[:] == b"\1" * WIDTH * WIDTH for one in fresh] == [True] * 8
    assert kept() is None
    assert ranges(path, "rw-p") == []


def test_nothing_is_given_back_of_a_session_that_is_being_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    model, _ = filed_model(tmp_path, activations=False)
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(mapped, "_give_back_of", lambda _, first, end: given.append((first, end)))
    original = ort.InferenceSession

    def building(*args: object, **facts: object) -> ort.InferenceSession:
        session = original(*args, **facts)
        mapped.forget_files({path})
        assert not given
        return session

    monkeypatch.setattr(ort, "InferenceSession", building)
    session = Session(model, threads=1)
    mapped.forget_files({path})
    assert given == ranges(path, "rw-p")
    del session


def test_each_session_owns_its_own_mappings_and_a_failed_one_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "weights"
    model, _ = filed_model(tmp_path, activations=False)
    sessions = [Session(model, threads=1) for _ in range(3)]  # mapped side by side, and told of as one

    def failing(*args: object, **facts: object) -> ort.InferenceSession:
        raise OSError

    with monkeypatch.context() as patch, pytest.raises(OSError):
        patch.setattr(ort, "InferenceSession", failing)
        Session(model, threads=1)
    del sessions[1]
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(mapped, "_give_back_of", lambda _, first, end: given.append((first, end)))
    mapped.forget_files({path})
    assert len(given) == 2
    assert sum(end - first for first, end in given) == 2 * WIDTH * WIDTH
    assert all(any(low <= first and end <= high for low, high in ranges(path, "rw-p")) for first, end in given)


@pytest.mark.slow
def test_the_pages_of_a_session_are_given_back_after_each_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    session = Session(filed_model(tmp_path, activations=False)[0], threads=1)
    original = mapped._give_back_of
    resident: list[int] = []

    def telling(owner: object, first: int, end: int) -> None:
        resident.append(resident_kib(path))
        original(owner, first, end)

    monkeypatch.setattr(mapped, "_give_back_of", telling)
    for _ in range(2):
        (found,) = session.run({"x": X})
        assert resident.pop() > 0
        assert resident_kib(path) == 0
    np.testing.assert_array_equal(session.run({"x": X})[0], found)


def test_what_nobody_owns_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"\1" * SIZE)
    with path.open("rb") as file:
        known, unknown = (mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) for _ in range(2))
    mapped.know(path, known)
    for view in (known, unknown):
        assert view[:] == b"\1" * SIZE
    mapped.forget_files({path})
    assert resident_kib(path) == SIZE >> 10


def test_a_range_without_what_others_had_before() -> None:
    outside = mapped._outside
    assert list(outside(10, 20, [])) == [(10, 20)]
    assert list(outside(10, 20, [(20, 30), (0, 10)])) == [(10, 20)]
    assert list(outside(10, 20, [(15, 17), (5, 11)])) == [(11, 15), (17, 20)]
    assert list(outside(10, 20, [(5, 25)])) == []


def ranges(path: Path, rights: str = "") -> list[tuple[int, int]]:
    lines = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    found = [line for line in lines if line[-1] == str(path.resolve()) and line[1].startswith(rights)]
    return [(int(line[0].split("-")[0], 16), int(line[0].split("-")[1], 16)) for line in found]


def resident_kib(path: Path) -> int:
    parts = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    found = [re.search(r"^Rss: +(\d+) kB", part, re.MULTILINE) for part in parts if str(path.resolve()) in part]
    return sum(int(each[1]) for each in found if each is not None)
