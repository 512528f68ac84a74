"""Archives made to do harm, or merely broken: refused by the member's name, and decoded no further than need be."""

from __future__ import annotations

import io
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
from worker.quantizer.data import inspect_dataset, zips
from worker.quantizer.data.media import archives, members, picture

PLAIN = PreprocessingSpec()
GOOD = encoded(noise(8, 8))
NO_PICTURE = "no picture of a known format"


def refused(path: Path, member: str, says: str) -> None:
    with pytest.raises(DatasetFormatError, match=says) as caught:
        inspect_dataset(path, PLAIN)
    error = caught.value
    assert error.where["member"] == member
    assert [place.pointer for place in error.errors] == ["/files/" + member.replace("~", "~0").replace("/", "~1")]
    assert repr(member) in error.detail
    assert error.hint


def special(name: str, kind: bytes = tarfile.DIRTYPE, size: int = 0) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.size, entry.linkname = kind, size, "/etc/passwd"
    return entry


def tar_of(path: Path, *entries: str | tarfile.TarInfo, mode: str = "w") -> Path:
    """Names are those of good pictures."""
    with tarfile.open(path, mode) as made:  # type: ignore[call-overload]
        for entry in entries:
            if isinstance(entry, str):
                made.addfile(special(entry, tarfile.REGTYPE, len(GOOD)), io.BytesIO(GOOD))
            else:
                made.addfile(entry)
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (b"this is a text file and no picture at all", NO_PICTURE),
        (b"", NO_PICTURE),
        (GOOD[: len(GOOD) // 2], "is damaged"),
        (encoded(noise(64, 64), "JPEG")[:900], "is damaged"),
        (encoded(noise(8, 8), "GIF"), NO_PICTURE),
    ],
    ids=["text", "empty", "cut-png", "cut-jpeg", "gif"],
)
def test_what_is_no_picture_is_named(tmp_path: Path, kind: Kind, bad: bytes, says: str) -> None:
    refused(archive(tmp_path / "x", {"a/good.png": GOOD, "a/bad.jpg": bad}, kind), "a/bad.jpg", says)


@pytest.mark.parametrize(
    ("entries", "member", "says"),
    [
        (["a.png", special("b/link.png", tarfile.SYMTYPE)], "b/link.png", "symbolic link"),
        (["a.png", special("b/link.png", tarfile.LNKTYPE)], "b/link.png", "hard link"),
        (["a.png", special("b/link.png", tarfile.FIFOTYPE)], "b/link.png", "named pipe"),
        (["a.png", special("b/link.png", b"Z")], "b/link.png", "unknown type"),
        ([special("../up"), "a.png"], "../up", "unsafe"),
        (["a.png", "a.png"], "a.png", "is there twice"),
        (["a.png", ".//a.png"], "a.png", "is there twice"),
    ],
)
def test_members_of_a_tar_that_are_refused(tmp_path: Path, entries: list, member: str, says: str) -> None:
    for mode in ("w", "w:gz"):
        refused(tar_of(tmp_path / "x", *entries, mode=mode), member, says)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_decompression_bomb_is_refused_by_its_header(
    tmp_path: Path, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one lies between our limit and that of Pillow."""
    monkeypatch.setattr(Image.Image, "convert", lambda *_: pytest.fail("a picture was decoded"))
    refused(archive(tmp_path / "x", {"bomb.png": huge_png(30_000)}, kind), "bomb.png", "more than 67108864 pixels")
    refused(archive(tmp_path / "y", {"large.png": huge_png(9000)}), "large.png", "9000 x 9000 pixels")


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
    with pytest.raises(DatasetFormatError, match=r"10240000 x 256 pixels"):
        inspect_dataset(path, PreprocessingSpec.model_validate("imagenet_torchvision"))


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_files_folders_and_headers_are_counted(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [special(f"folder{k}") for k in range(51)]
    with monkeypatch.context() as patch:
        patch.setattr(archives, "_MAX_HEADERS", 50)
        refused(tar_of(tmp_path / "x", "a.png", *folders, mode=mode), "folder48", "more than 50 headers")
    with monkeypatch.context() as patch:
        patch.setattr(archives, "MAX_FILES", 20)
        refused(tar_of(tmp_path / "x", "a.png", *folders, mode=mode), "folder20", "at most 20 folders")
    monkeypatch.setattr(members, "MAX_FILES", 20)
    pictures = [f"{k}.png" for k in range(21)]
    refused(tar_of(tmp_path / "x", *pictures, mode=mode), "20.png", "at most 20 files")


def test_a_zip_of_too_many_members_is_refused_before_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive(tmp_path / "x", {f"{k}.png": b"" for k in range(members.MAX_FILES // 50)}, "zip")
    data = bytearray(path.read_bytes())
    data[-14:-10] = b"\xff\xff\xff\xff"  # the end of the directory says 65535 members, and so ...
    data[-10:-6] = (0x7FFFFFFF).to_bytes(4, "little")  # ... and a directory of 2 GB
    path.write_bytes(data)
    monkeypatch.setattr(zips, "_entries", lambda *_: pytest.fail("the directory was read"))
    with pytest.raises(DatasetFormatError, match="at most 100000 are accepted"):
        inspect_dataset(path, PLAIN)


def test_bombs_of_many_members_are_stopped_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A megabyte may unpack to whatever it likes, in place of 64."""
    monkeypatch.setattr(members, "_RATIO_FREE_BYTES", 1 << 20)
    path = archive(tmp_path / "x", {f"{k}.bmp": bytes(512 << 10) for k in range(20)}, "tar.gz")
    with pytest.raises(DatasetFormatError, match="unpack to more than 100 times its size") as caught:
        inspect_dataset(path, PLAIN)
    assert caught.value.where["member"] in {f"{k}.bmp" for k in range(2, 10)}
    with zipfile.ZipFile(tmp_path / "y", "w", zipfile.ZIP_DEFLATED) as made:  # by its directory
        for k in range(4):
            made.writestr(f"{k}.bmp", bytes(512 << 10))
    refused(tmp_path / "y", "2.bmp", "unpack to more than 100 times its size")


@pytest.mark.parametrize("format_", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_way_to_write_a_name_is_read(tmp_path: Path, format_: int) -> None:
    names = ["f" * 90 + "/" + "n" * 60 + ".png", "größe/ä" + "x" * 100 + ".png"]
    for name in names[:1] if format_ == tarfile.USTAR_FORMAT else names:  # which cannot write the second one
        with tarfile.open(tmp_path / "x", "w", format=format_) as made:
            made.addfile(special(name, tarfile.REGTYPE, 3), io.BytesIO(b"abc"))
        refused(tmp_path / "x", name, "no picture")


def test_archives_that_hold_nothing_or_more_than_their_end_are_refused(tmp_path: Path) -> None:
    entry = tarfile.TarInfo("a.png")
    entry.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.name": "a.png"}
    with tarfile.open(tmp_path / "sparse", "w", format=tarfile.PAX_FORMAT) as made:
        made.addfile(tarfile.TarInfo("first.png"), None)
        made.addfile(entry)
    good = archive(tmp_path / "good.tar", {"a.png": GOOD}).read_bytes()
    for path, says in (
        (tmp_path / "sparse", "sparse"),
        (tar_of(tmp_path / "empty", special("folder")), "no picture and no sound"),
        (tar_of(tmp_path / "empty.gz", special("folder"), mode="w:gz"), "no picture and no sound"),
        (gzip_of_zeros(tmp_path / "text", b"text", 1), "no tar archive is in it"),
        (gzip_of_zeros(tmp_path / "behind", good, 3), "data after its end"),
    ):
        with pytest.raises(DatasetFormatError, match=says):
            inspect_dataset(path, PLAIN)


@settings(deadline=None)
@given(cut=st.floats(0.01, 0.98), kind=st.sampled_from(KINDS))
def test_every_truncation_is_refused(tmp_path_factory: pytest.TempPathFactory, cut: float, kind: Kind) -> None:
    files = {f"{k}.png": encoded(noise(24, 24, seed=k)) for k in range(6)}
    path = archive(tmp_path_factory.mktemp("cut") / "x", files, kind)
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
