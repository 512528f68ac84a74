"""Archives as datasets: labels three ways, what the summary says, several passes, memory, packing."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from service.contracts.dataset import MediaSummary, PreprocessingSpec
from service.contracts.errors import DatasetError, DatasetFormatError, DatasetLabelsError
from service.contracts.model import TensorInfo
from tests.support.media import KINDS, Kind, archive, encoded, noise, wav
from worker.quantizer.data import inspect_dataset, open_dataset
from worker.quantizer.data.media import reading
from worker.quantizer.data.media.packing import pack_folder

PLAIN = PreprocessingSpec()
GOOD = encoded(noise(8, 8))


def labels(path: Path) -> tuple[list[int] | None, tuple[str, ...] | None]:
    data = open_dataset(path, PLAIN)
    assert data.media is not None
    found = data.labels
    return (None if found is None else found.tolist()), data.media.labels.classes if data.media.labels else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("names", "numbers", "classes"),
    [
        (["dog/1.png", "cat/1.png", "dog/2.png"], [1, 0, 1], ("cat", "dog")),
        (["train/dog/a/1.png", "train/cat/1.png"], [1, 0], ("cat", "dog")),
        (["./top/10/1.png", "./top/9/1.png", "./top/007/1.png"], [10, 9, 7], None),
        (["9/1.png", "x/1.png", "10/1.png"], [1, 2, 0], ("10", "9", "x")),
        (["1.png", "2.png"], None, None),
        (["all/1.png", "all/2.png"], None, None),
        (["3/1.png"], None, None),
    ],
)
def test_labels_by_folder(
    tmp_path: Path, kind: Kind, names: list[str], numbers: list[int] | None, classes: tuple[str, ...] | None
) -> None:
    files = dict.fromkeys(names, GOOD)
    if kind == "zip" and "/" in names[0]:
        files = {f"{names[0].rpartition('/')[0]}/": b"", **files}  # the usual tools list folders, too
    assert labels(archive(tmp_path / "x", files, kind)) == (numbers, classes)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("first", "folder", "table", "numbers", "classes"),
    [
        (True, "", "file,label\na/1.png,7\nb/2.png,0\n", [7, 0], None),
        (False, "", 'b/2.png,dog\r\n./a/1.png,"cat, small"\r\n', [0, 1], ("cat, small", "dog")),
        (False, "top/", "\ufeffFile, Label\n\na/1.png,5\nb/2.png,5", [5, 5], None),
        (True, "", "a/1.png,-1\nb/2.png,3", [-1, 3], None),
    ],
)
def test_labels_by_table(
    tmp_path: Path, kind: Kind, first: bool, folder: str, table: str, numbers: list[int], classes: Any
) -> None:
    files = {f"{folder}a/1.png": GOOD, f"{folder}b/2.png": GOOD}
    row = {f"{folder}labels.csv": table.encode()}
    path = archive(tmp_path / "x", row | files if first else files | row, kind)
    assert labels(path) == (numbers, classes)


NO_ROW = "line 2 of 'labels.csv' is not of the form"


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (b"a.png,1\n", "no row for 'b.png'"),
        (b"a.png,1\nb.png,2\nc.png,3\n", "names 'c.png' in line 3, which does not exist"),
        (b"a.png,1\nb.png,2\na.png,1\n", "names 'a.png' twice, again in line 3"),
        (b"a.png,1\nb.png\n", NO_ROW),
        (b"a.png,1\nb.png,\n", NO_ROW),
        (b"a.png,1\nb.png,99999999999999999999999\n", "beyond 2147483647"),
        (b"\xff\xfe,1\n", "not a CSV file in UTF-8"),
        (b'a.png,"1\n', "not a CSV file in UTF-8"),
    ],
)
def test_tables_that_do_not_fit(tmp_path: Path, table: bytes, says: str) -> None:
    path = archive(tmp_path / "x", {"a.png": GOOD, "b.png": GOOD, "labels.csv": table})
    with pytest.raises(DatasetLabelsError, match=says) as caught:
        inspect_dataset(path, PLAIN)
    assert [place.pointer for place in caught.value.errors] == ["/labels"]


def test_files_where_none_belong_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "x", {"cat/a.png": GOOD, "b.png": GOOD})
    with pytest.raises(DatasetLabelsError, match=r"'b.png' is not in a class folder"):
        inspect_dataset(path, PLAIN)
    path = archive(tmp_path / "y", {"cat/a.png": GOOD, "cat/labels.csv": b"a.png,1", "dog/a.png": GOOD})
    with pytest.raises(DatasetFormatError, match=r"'cat/labels.csv' is neither"):
        inspect_dataset(path, PLAIN)
    arrays = io.BytesIO()
    np.save(arrays, np.zeros((2, 3), np.float32))
    archive(tmp_path / "z", {"preview.png": GOOD, "x.npy": arrays.getvalue()}, "zip")
    assert inspect_dataset(tmp_path / "z", PLAIN, thumbnails=tmp_path).format == "npz"
    assert inspect_dataset(tmp_path / "z", PLAIN, thumbnails=tmp_path).thumbnails is None


@pytest.mark.parametrize("kind", KINDS)
def test_the_summary_tells_archive_classes_and_sizes(tmp_path: Path, kind: Kind) -> None:
    files = {
        "dog/a.png": encoded(noise(20, 30)),
        "cat/b.jpg": encoded(noise(9, 40), "JPEG"),
        "cat/c.jpg": encoded(noise(50, 13), "JPEG"),
    }
    path = archive(tmp_path / "x", files, kind)
    spec = PreprocessingSpec.model_validate({"pictures": {"crop": [8, 8]}})
    summary = inspect_dataset(path, spec)
    assert (summary.format, summary.file_format, summary.samples) == ("pictures", kind, 3)
    assert summary.arrays["images"].shape == (3, 8, 8, 3)
    assert summary.media == MediaSummary(
        archive=kind, codecs={"JPEG": 2, "PNG": 1}, classes=("cat", "dog"), smallest=(9, 40), largest=(50, 13)
    )
    assert summary.labels is not None
    assert (summary.labels.minimum, summary.labels.maximum) == (0, 1)
    assert summary.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert summary.thumbnails is None


@pytest.mark.parametrize(("kind", "spooled"), [("tar", True), ("tar", False), ("tar.gz", False), ("zip", True)])
def test_passes_may_cross_each_other(
    tmp_path: Path, kind: Kind, spooled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not spooled:
        monkeypatch.setattr(reading, "MAX_SPOOL_BYTES", 0)
    pixels = np.stack([noise(8, 8, seed=k) for k in range(20)])
    path = archive(tmp_path / "x", {f"{k}.png": encoded(values) for k, values in enumerate(pixels)}, kind)
    data = open_dataset(path, PreprocessingSpec.model_validate({"inputs": {"*": {"array": "images", "scale": 1.0}}}))
    inputs = [TensorInfo(name="x", dtype="float32", shape=("n", 8, 8, 3))]
    first = data.batches(inputs, 3)
    next(first)
    for batches, start in (
        (data.batches(inputs, 7), 0),
        (first, 3),
        (data.batches(inputs, 4, samples=range(8, data.samples)), 8),
    ):
        np.testing.assert_array_equal(np.concatenate([batch.feeds["x"] for batch in batches]), pixels[start:])
    assert data.summary.media is not None
    assert data.summary.media.codecs == {"PNG": 20}
    path = archive(tmp_path / "broken", {"a.png": GOOD, "b.png": GOOD[:-30], "c.png": GOOD})
    array = open_dataset(path, PLAIN).selection.arrays["images"]
    for _ in range(2):  # every pass fails where a picture is broken
        reader = array.open()
        assert reader.read(1).shape[0] == 1
        with pytest.raises(DatasetFormatError, match=r"'b.png' is damaged"):
            reader.read(2)


def test_what_was_decoded_is_decoded_once_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "spool").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "spool"))
    path = archive(tmp_path / "x", {f"{k}.png": encoded(noise(8, 8, seed=k)) for k in range(10)})
    data = open_dataset(path, PLAIN)
    made: list[str] = []
    decode = reading.picture.decode
    monkeypatch.setattr(reading.picture, "decode", lambda name, *rest: made.append(name) or decode(name, *rest))
    for _ in range(3):
        assert data.selection.arrays["images"].open().read(10).shape == (10, 8, 8, 3)
    assert made == [f"{k}.png" for k in range(10)]
    assert list((tmp_path / "spool").iterdir()) == []
    open_files = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]  # noqa: PTH115
    assert str(path) not in open_files


@pytest.mark.parametrize("count", [1, 40])
def test_thumbnails_show_samples_evenly(tmp_path: Path, count: int) -> None:
    files = {f"{k:03}.png": encoded(np.full((20, 30, 3), 5 * k, np.uint8)) for k in range(count)}
    out = tmp_path / "out"
    out.mkdir()
    found = inspect_dataset(archive(tmp_path / "x", files, "tar.gz"), PLAIN, thumbnails=out).thumbnails
    assert found is not None
    content = (out / found.file).read_bytes()
    assert (hashlib.sha256(content).hexdigest(), len(content)) == (found.sha256, found.size_bytes)
    sheet = Image.open(io.BytesIO(content))
    assert sheet.format == "PNG"
    shown = min(count, 16)
    greys = {value[0] for _, value in sheet.getcolors() or () if isinstance(value, tuple)} - {255}
    assert greys == {5 * (k * count // shown) for k in range(shown)}


def test_packing_is_deterministic_and_sorted(tmp_path: Path) -> None:
    outputs = []
    for k, names in enumerate((["b/2.png", "a/1.png", "a/10.jpg"], ["a/10.jpg", "b/2.png", "a/1.png"])):
        for number, name in enumerate(names):
            path = tmp_path / f"folder{k}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(GOOD)
            os.utime(path, (1000 * number + k, 5))
            path.chmod(0o600 + k)
        outputs.append(tmp_path / f"{k}.tar")
        packed = pack_folder(tmp_path / f"folder{k}", outputs[-1])
        assert (packed.files, packed.content, packed.classes) == (3, "pictures", 2)
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    with tarfile.open(outputs[0]) as made:
        found = made.getmembers()
    assert [member.name for member in found] == ["a/1.png", "a/10.jpg", "b/2.png"]
    assert {(member.mtime, member.uid, member.uname, member.mode) for member in found} == {(0, 0, "", 0o644)}
    assert inspect_dataset(outputs[0], PLAIN).samples == 3


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("notes.txt", b"x", "'sub/notes.txt' is neither a picture nor a sound"),
        ("text.jpg", b"no picture", "'sub/text.jpg' is no picture"),
        ("huge.png", None, "'sub/huge.png' takes"),
        ("x.wav", wav(np.zeros(10)), "'sub/x.wav' is one of the sounds"),
        ("more", "link", "'sub/more' is a link to a folder"),
    ],
)
def test_packing_refuses_what_cannot_be_used(tmp_path: Path, name: str, content: Any, says: str) -> None:
    path = tmp_path / "folder" / "sub" / name
    path.parent.mkdir(parents=True)
    (tmp_path / "real.png").write_bytes(GOOD)
    (path.parent / "a.png").symlink_to(tmp_path / "real.png")  # a link to a file is followed
    if content == "link":
        path.symlink_to(tmp_path)
    else:
        path.write_bytes(content or b"")
    if content is None:
        os.truncate(path, 65 << 20)
    with pytest.raises(DatasetError, match=says):
        pack_folder(tmp_path / "folder", tmp_path / "x.tar")
    assert {found.name for found in tmp_path.iterdir()} == {"folder", "real.png"}
    path.unlink()
    assert pack_folder(tmp_path / "folder", tmp_path / "x.tar").files == 1
    assert inspect_dataset(tmp_path / "x.tar", PLAIN).samples == 1
