"""Archives made to do harm, or merely broken: refused by the member's name, and decoded no further than need be."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import DatasetError, DatasetFormatError
from tests.support.media import KINDS, Kind, archive, encoded, gzip_of_zeros, huge_png, noise
from worker.quantizer.data import inspect_dataset, zip_directory
from worker.quantizer.data.media import members, picture, tar

PLAIN = PreprocessingSpec()
GOOD = encoded(noise(8, 8))


def refused(path: Path, member: str, says: str) -> DatasetFormatError:
    with pytest.raises(DatasetFormatError, match=says) as caught:
        inspect_dataset(path, PLAIN)
    error = caught.value
    assert error.where["member"] == member
    assert [place.pointer for place in error.errors] == ["/files/" + member.replace("~", "~0").replace("/", "~1")]
    assert repr(member) in error.detail
    assert error.hint
    return error


def tar_of(path: Path, *entries: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as made:  # type: ignore[call-overload]
        for entry, data in entries:
            entry.size = entry.size or len(data)
            made.addfile(entry, io.BytesIO(data) if data else None)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"this is a text file and no picture at all", "no picture of a known format"),
        (b"", "no picture of a known format"),
        (GOOD[: len(GOOD) // 2], "is damaged"),
        (encoded(noise(64, 64), "JPEG")[:900], "is damaged"),
        (encoded(noise(8, 8), "GIF"), "no picture of a known format"),
        (encoded(noise(8, 8), "EPS"), "no picture of a known format"),
    ],
    ids=["text", "empty", "cut-png", "cut-jpeg", "gif", "eps"],
)
def test_what_is_no_picture_is_named(tmp_path: Path, kind: Kind, bad: bytes, says: str) -> None:
    refused(archive(tmp_path / "x", {"a/good.png": GOOD, "a/bad.jpg": bad}, kind), "a/bad.jpg", says)


@pytest.mark.parametrize("kind", KINDS)
def test_a_decompression_bomb_is_refused_by_its_header(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("a picture was decoded"))
    refused(archive(tmp_path / "x", {"bomb.png": huge_png(30_000)}, kind), "bomb.png", "more than 67108864 pixels")


@pytest.mark.parametrize("lossless", [True, False])
def test_a_webp_bomb_is_refused_before_its_decoder_is_made(
    tmp_path: Path, lossless: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(encoded(noise(8, 8), "WEBP", lossless=lossless))
    if lossless:
        data[21:25] = (0x3FFF | 0x3FFF << 14).to_bytes(4, "little")
    else:
        data[26:30] = b"\xff\x3f\xff\x3f"
    monkeypatch.setattr(picture.Image, "open", lambda *_, **__: pytest.fail("the decoder was made"))
    refused(archive(tmp_path / "x", {"bomb.webp": bytes(data)}), "bomb.webp", "pixels; at most 67108864")


def test_a_resize_that_would_make_a_bomb_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "x", {"thin.png": encoded(np.zeros((1, 40_000), np.uint8))})
    spec = PreprocessingSpec.model_validate("imagenet_torchvision")
    with pytest.raises(DatasetFormatError, match=r"10240000 x 256 pixels"):
        inspect_dataset(path, spec)


@pytest.mark.parametrize(
    ("kind", "says", "mode"),
    [
        (tarfile.SYMTYPE, "symbolic link", "w"),
        (tarfile.LNKTYPE, "hard link", "w:gz"),
        (tarfile.CHRTYPE, "character device", "w"),
        (tarfile.BLKTYPE, "block device", "w"),
        (tarfile.FIFOTYPE, "named pipe", "w:gz"),
        (b"Z", "unknown type", "w"),
    ],
)
def test_members_that_are_no_files_are_refused(tmp_path: Path, kind: bytes, says: str, mode: str) -> None:
    entry = tarfile.TarInfo("b/link.png")
    entry.type, entry.linkname = kind, "/etc/passwd"
    path = tar_of(tmp_path / "x", (tarfile.TarInfo("a.png"), GOOD), (entry, b""), mode=mode)
    refused(path, "b/link.png", says)


def test_a_symbolic_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("a.png", GOOD)
        entry = zipfile.ZipInfo("link.png")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        made.writestr(entry, "/etc/passwd")
    refused(path, "link.png", "link or a device")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["../x.png", "a/../../x.png", "/etc/x.png", "a\\..\\x.png"])
def test_unsafe_paths_are_refused(tmp_path: Path, kind: Kind, name: str) -> None:
    refused(archive(tmp_path / "x", {"a.png": GOOD, name: GOOD}, kind), name, "unsafe")


@pytest.mark.parametrize("second", ["a.png", "./a.png", ".//a.png"])
def test_a_name_that_is_there_twice_is_refused(tmp_path: Path, second: str) -> None:
    path = tar_of(tmp_path / "x", (tarfile.TarInfo("a.png"), GOOD), (tarfile.TarInfo(second), GOOD))
    refused(path, "a.png", "is there twice")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_that_is_twice_in_a_zip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("a.png", GOOD)
        made.writestr("a.png", GOOD)
    refused(path, "a.png", "twice")


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_too_many_members_are_refused(tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_FILES", 20)
    refused(archive(tmp_path / "x", {f"{k}.png": GOOD for k in range(21)}, kind), "20.png", "at most 20 files")


def test_a_zip_of_too_many_members_is_refused_before_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    with zipfile.ZipFile(path, "w") as made:
        for k in range(members.MAX_FILES // 50):
            made.writestr(f"{k}.png", b"")
    data = bytearray(path.read_bytes())
    data[-14:-10] = b"\xff\xff\xff\xff"  # the end of the directory says 65535 members, and so ...
    data[-10:-6] = (0x7FFFFFFF).to_bytes(4, "little")  # ... and a directory of 2 GB
    path.write_bytes(data)
    monkeypatch.setattr(zip_directory, "_entries", lambda *_: pytest.fail("the directory was read"))
    with pytest.raises(DatasetFormatError, match="at most 100000 are accepted"):
        inspect_dataset(path, PLAIN)


def folder(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = tarfile.DIRTYPE
    return entry


@pytest.mark.parametrize(
    ("limit", "most", "member", "says"),
    [("MAX_FILES", 20, "folder20", "at most 20 folders"), ("_MAX_HEADERS", 50, "folder48", "more than 50 headers")],
)
def test_folders_and_headers_are_counted(
    tmp_path: Path, limit: str, most: int, member: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tar, limit, most)
    folders = [(folder(f"folder{k}"), b"") for k in range(51)]
    for mode in ("w", "w:gz"):
        refused(tar_of(tmp_path / "x", (tarfile.TarInfo("a.png"), GOOD), *folders, mode=mode), member, says)


@pytest.fixture
def small_allowance(monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte may unpack to whatever it likes, in place of 64."""
    monkeypatch.setattr(members, "_RATIO_FREE_BYTES", 1 << 20)


@pytest.mark.usefixtures("small_allowance")
def test_a_gzip_bomb_of_many_members_is_stopped_on_the_way(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with tarfile.open(path, "w:gz") as made:
        for k in range(20):
            entry = tarfile.TarInfo(f"{k}.bmp")
            entry.size = 512 << 10
            made.addfile(entry, io.BytesIO(bytes(entry.size)))
    with pytest.raises(DatasetFormatError, match="unpack to more than 100 times its size") as caught:
        inspect_dataset(path, PLAIN)
    assert caught.value.where["member"] in {f"{k}.bmp" for k in range(2, 10)}


def test_a_gzip_bomb_behind_the_end_is_refused(tmp_path: Path) -> None:
    tar = archive(tmp_path / "good.tar", {"a.png": GOOD}).read_bytes()
    with pytest.raises(DatasetFormatError, match="something behind its end"):
        inspect_dataset(gzip_of_zeros(tmp_path / "x", tar, 3), PLAIN)


@pytest.mark.usefixtures("small_allowance")
def test_a_zip_bomb_is_refused_by_its_directory(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for k in range(4):
            made.writestr(f"{k}.bmp", bytes(512 << 10))
    refused(path, "2.bmp", "unpack to more than 100 times its size")


def test_sizes_that_a_header_declares_are_not_believed(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("bomb.png")
    entry.size = 10 << 30
    refused(gzip_of_zeros(tmp_path / "bomb", entry.tobuf(), 1), "bomb.png", "unpacks to 10737418240 bytes")
    entry = tarfile.TarInfo("././@LongLink")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 4 << 30
    (tmp_path / "x").write_bytes(tarfile.TarInfo("a.png").tobuf() + entry.tobuf() + bytes(1024))
    refused(tmp_path / "x", "a.png", "header of 4294967296 bytes")


@pytest.mark.parametrize("format_", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_way_to_write_a_name_is_read(tmp_path: Path, format_: int) -> None:
    for name in ("f" * 90 + "/" + "n" * 60 + ".png", "größe/ä" + "x" * 100 + ".png"):
        with tarfile.open(tmp_path / "x", "w", format=format_) as made:
            entry = tarfile.TarInfo(name)
            entry.size = 3
            made.addfile(entry, io.BytesIO(b"abc"))
        refused(tmp_path / "x", name, "no picture")


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as made:
        made.addfile(tarfile.TarInfo("first.png"), None)
        entry = tarfile.TarInfo("a.png")
        entry.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "a.png"}
        made.addfile(entry)
    with pytest.raises(DatasetFormatError, match="sparse"):
        inspect_dataset(path, PLAIN)


@pytest.mark.parametrize("kind", KINDS)
def test_other_files_are_refused_by_name(tmp_path: Path, kind: Kind) -> None:
    refused(archive(tmp_path / "x", {"a.png": GOOD, "README.txt": b"x"}, kind), "README.txt", "neither a picture")
    refused(archive(tmp_path / "y", {"a.png": GOOD, "b.wav": b"x"}, kind), "b.wav", "one of the sounds")


def test_an_archive_without_pictures_is_refused(tmp_path: Path) -> None:
    refused(tar_of(tmp_path / "up", (folder("../up"), b""), (tarfile.TarInfo("a.png"), GOOD)), "../up", "unsafe")
    for mode in ("w", "w:gz"):
        with pytest.raises(DatasetFormatError, match="no picture and no sound"):
            inspect_dataset(tar_of(tmp_path / "x", (folder("folder"), b""), mode=mode), PLAIN)
    with pytest.raises(DatasetFormatError, match="no tar archive is in it"):
        inspect_dataset(gzip_of_zeros(tmp_path / "x", b"text", 1), PLAIN)


@settings(deadline=None)
@given(cut=st.floats(0.01, 0.98), kind=st.sampled_from(KINDS))
def test_every_truncation_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: float, kind: Kind) -> None:
    path = archive(
        tmp_path_factory.mktemp("cut") / "x", {f"{k}.png": encoded(noise(24, 24, seed=k)) for k in range(6)}, kind
    )
    data = path.read_bytes()
    end = len(data) if kind != "tar" else 6 * 2560  # what follows in a tar fills up its last record
    path.write_bytes(data[: int(cut * end)])
    with pytest.raises(DatasetFormatError):
        inspect_dataset(path, PLAIN)


@settings(deadline=None)
@given(data=st.data(), kind=st.sampled_from(KINDS), codec=st.sampled_from(picture.FORMATS))
def test_random_damage_never_escapes_the_error_tree(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: Kind, codec: str
) -> None:
    suffix = {"JPEG": "jpg"}.get(codec, codec.lower())
    files = {f"{k}.{suffix}": encoded(noise(12, 12, seed=k), codec) for k in range(2)}
    path = archive(tmp_path_factory.mktemp("damage") / "x", files, kind)
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        inspect_dataset(path, PLAIN)
    except DatasetError as error:
        assert error.code in {"dataset-format", "dataset-labels", "dataset-empty"}
