"""Hostile data: archives of arrays and of pictures, safetensors, tars; bombs, lies and paths that lead out."""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.security.corpus.case import READY, Case, Content
from tests.security.corpus.pickles import safetensors
from tests.support.media import wav

FORMAT, ARRAYS = "dataset-format", "dataset-arrays"
MIB = 1 << 20


def dataset(name: str, file: str, data: bytes | Callable[[], bytes], code: str = FORMAT) -> Case:
    content: Content = data if isinstance(data, bytes) else lambda path: path.write_bytes(data())
    return Case(name, "dataset", {file: content}, code)


# --- arrays ----------------------------------------------------------------------------------------------------------


def npy(array: np.ndarray[Any, Any] | None = None) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, np.ones((4, 3), "<f4") if array is None else array)
    return buffer.getvalue()


def header(text: str, data: bytes = b"", version: int = 1) -> bytes:
    raw = text.encode()
    length = struct.pack("<H" if version == 1 else "<L", len(raw))
    return b"\x93NUMPY" + bytes([version, 0]) + length + raw + data


def fields(shape: str, descr: str = "'<f4'", order: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}}}"


def zipped(
    *members: tuple[str, bytes], packed: bool = False, change: Callable[[zipfile.ZipInfo], None] | None = None
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members:
            info = zipfile.ZipInfo(name)
            if change is not None:
                change(info)
            method = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
            archive.writestr(info, data, compress_type=method)
    return buffer.getvalue()


def npz(data: bytes, **options: Any) -> bytes:
    return zipped(("x.npy", data), **options)


def patched(data: bytes, at: int, new: bytes, *, magic: bytes = b"PK\x01\x02") -> bytes:
    """Bytes of the first entry of the directory replaced."""
    start = data.index(magic) + at
    return data[:start] + new + data[start + len(new) :]


def mode(bits: int) -> Callable[[zipfile.ZipInfo], None]:
    def change(info: zipfile.ZipInfo) -> None:
        info.external_attr = bits << 16

    return change


def overlapping() -> bytes:
    """Every entry of the directory names the same bytes, as in zip bombs that need no nesting."""
    data = zipped(*((f"{k:03}.npy", npy(np.zeros((4, 3), "<f4"))) for k in range(100)))
    end = data.index(b"PK\x01\x02")
    entries, rest = data[end : data.rindex(b"PK\x05\x06")], data[data.rindex(b"PK\x05\x06") :]
    size = len(entries) // 100
    same = b"".join(entries[k * size : (k + 1) * size - 4 - 7] + bytes(4) + b"%03d.npy" % k for k in range(100))
    return data[:end] + same + rest


def bomb(unpacked: int) -> bytes:
    """An array of zeros that is a thousandth of its size."""
    head = header(fields(f"({unpacked // 4},)"))
    return npz(head + bytes(unpacked // 4 * 4), packed=True)


def nested_zip() -> bytes:
    data = bytes(MIB)
    for level in range(6):
        data = zipped(*((f"{level}-{k}.zip", data) for k in range(8)), packed=True)
    return data


ARRAY_CASES = [
    dataset("npz-empty", "x.npz", b""),
    dataset("npz-of-no-members", "x.npz", zipped(), "dataset-empty"),
    *(dataset(f"npz-member-at-{ascii(name)[:30]}", "x.npz", zipped((name, npy()))) for name in (
        "/etc/x.npy", "a/../../x.npy", "..\\x.npy",
    )),
    dataset("npz-member-twice", "x.npz", zipped(("x.npy", npy()), ("x.npy", npy()))),
    dataset("npz-encrypted", "x.npz", patched(npz(npy()), 8, b"\x01\0")),
    dataset("npz-of-an-unknown-method", "x.npz", patched(npz(npy()), 10, b"\x63\0")),
    dataset("npz-with-a-link", "x.npz", npz(npy(), change=mode(0o120777))),
    dataset("npz-with-a-false-checksum", "x.npz", patched(npz(npy()), 16, b"\0\0\0\0")),
    dataset("npz-that-declares-more", "x.npz", patched(npz(npy(), packed=True), 24, struct.pack("<L", 1 << 30))),
    dataset("npz-that-declares-less", "x.npz", patched(npz(npy(), packed=True), 24, struct.pack("<L", 130))),
    dataset("npz-with-a-header-beyond-the-file", "x.npz", patched(npz(npy()), 42, struct.pack("<L", 1 << 30))),
    dataset("npz-of-overlapping-members", "x.npz", overlapping),
    dataset("npz-cut-in-half", "x.npz", npz(npy())[:100]),
    dataset("npz-with-20000-members", "x.npz", lambda: zipped(*((f"{k}.npy", b"") for k in range(20_000)))),
    dataset("npz-that-lists-2^32-members", "x.npz", npz(npy())[:-22] + b"PK\x05\x06" + bytes(4) + b"\xff\xff" * 2 + b"\xff" * 8 + bytes(2)),  # noqa: E501
    dataset("npz-of-a-quarter-gibibyte-of-zeros", "x.npz", lambda: bomb(1 << 28), READY),
    dataset("zip-of-zips", "x.npz", nested_zip, "dataset-empty"),
    dataset("npz-shape-of-2^62", "x.npz", npz(header(fields("(1 << 62,)".replace("1 << 62", str(1 << 62)))))),
    dataset("npz-negative-shape", "x.npz", npz(header(fields("(-1, 3)"), bytes(12)))),
    dataset("npz-shape-of-rank-100", "x.npz", npz(header(fields("(" + "1," * 100 + ")"), bytes(4)))),
    dataset("npz-shape-of-floats", "x.npz", npz(header(fields("(1.0, 3)"), bytes(12)))),
    dataset("npz-header-nested-deep", "x.npz", npz(header("(" * 5000))),
    dataset("npz-header-of-a-sum", "x.npz", npz(header("1" + "+1j" * 3000))),
    dataset("npz-header-of-4-gigabytes", "x.npz", npz(b"\x93NUMPY\x02\0\xff\xff\xff\xff" + bytes(100))),
    dataset("npz-header-of-version-9", "x.npz", npz(header(fields("(4, 3)"), bytes(48), version=9))),
    dataset("npz-type-of-many-fields", "x.npz", npz(header(fields("(4,)", "[('a', '<f4')] * 0" .replace(" * 0", "")), bytes(16))), ARRAYS),  # noqa: E501
    dataset("npz-type-with-a-shape", "x.npz", npz(header(fields("(1,)", "('<f4', (100000, 100000))"), bytes(16)))),
    dataset("npz-nan", "x.npz", npz(npy(np.full((4, 3), np.nan, "<f4"))), "non-finite-data"),
    dataset("safetensors-header-of-2^63", "x.safetensors", struct.pack("<Q", 1 << 63) + b"{}"),
    dataset("safetensors-header-of-17-megabytes", "x.safetensors", lambda: safetensors(b"{" + b" " * (17 * MIB) + b"}")),  # noqa: E501
    dataset("safetensors-nested-deep", "x.safetensors", safetensors(b'{"a":' * 100_000)),
    dataset("safetensors-name-twice", "x.safetensors", safetensors(b'{"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4))),  # noqa: E501
    *(dataset(f"safetensors-{name}", "x.safetensors", safetensors({"x": {"dtype": "F32", "shape": shape, "data_offsets": offsets}}, bytes(48))) for name, shape, offsets in (  # noqa: E501
        ("beyond-the-file", [4, 4], [0, 64]),
        ("before-the-file", [4, 3], [-48, 0]),
        ("of-2^64", [1 << 32, 1 << 32], [0, 48]),
        ("of-a-negative-shape", [-4, -3], [0, 48]),
        ("of-floats", [4.0, 3], [0, 48]),
        ("of-one-offset", [4, 3], [0]),
    )),
    dataset("safetensors-of-nothing-known", "x.safetensors", safetensors({"x": {"dtype": "PICKLE", "shape": [4], "data_offsets": [0, 48]}}, bytes(48)), ARRAYS),  # noqa: E501
]  # fmt: skip

# --- pictures and sounds ---------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">L", len(data)) + kind + data + struct.pack(">L", zlib.crc32(kind + data))


def png(width: int, height: int, data: bytes | None = None, *more: bytes, bits: int = 8, colour: int = 0) -> bytes:
    rows = zlib.compress(bytes((width + 1) * height)) if data is None else data
    head = chunk(b"IHDR", struct.pack(">2L5B", width, height, bits, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


GOOD = png(8, 8)
TEXT_BOMB = chunk(b"zTXt", b"comment\0\0" + zlib.compress(bytes(100 * MIB), 9))
BMP = (
    b"BM"
    + struct.pack("<LHHL", 54, 0, 0, 54)
    + struct.pack("<LllHHLLllLL", 40, 1 << 20, 1 << 20, 1, 24, 0, 0, 0, 0, 0, 0)
)
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"
WEBP = b"RIFF" + struct.pack("<L", 30) + b"WEBPVP8X" + struct.pack("<L", 10) + bytes(4) + b"\xff\xff\xff" * 2
JPEG = b"\xff\xd8\xff\xc0\x00\x11\x08\xff\xff\xff\xff\x03\x01\x22\x00\x02\x11\x01\x03\x11\x01\xff\xd9"


def pictures(*files: tuple[str, bytes], **options: Any) -> bytes:
    return zipped(*(files or (("a/1.png", GOOD), ("b/2.png", GOOD))), **options)


def one(data: bytes, name: str = "a/1.png") -> bytes:
    return pictures((name, data), ("b/2.png", GOOD))


def sound(data_bytes: int, declared: int | None = None) -> bytes:
    data = wav(np.zeros(data_bytes // 2))
    return data if declared is None else data[:40] + struct.pack("<L", declared) + data[44:]


def tar(
    *members: tuple[str, bytes | bytes], kind: bytes = tarfile.REGTYPE, link: str = "", fmt: int = tarfile.USTAR_FORMAT
) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=fmt) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data) if kind == tarfile.REGTYPE else 0
            info.type, info.linkname = kind, link
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


GOOD_TAR = tar(("a/1.png", GOOD), ("b/2.png", GOOD))


def checksummed(block: bytes) -> bytes:
    total = sum(block[:148]) + 8 * 32 + sum(block[156:512])
    return block[:148] + b"%06o\0 " % total + block[156:]


MEDIA_CASES = [
    dataset("pictures-that-are-fine", "x.zip", pictures(), READY),
    dataset("tar-that-is-fine", "x.tar", GOOD_TAR, READY),
    dataset("png-of-2500-megapixels", "x.zip", one(png(50_000, 50_000, zlib.compress(bytes(1000)), bits=1))),
    dataset("png-of-nothing", "x.zip", one(png(0, 0, b""))),
    dataset("png-that-unpacks-to-more", "x.zip", one(png(8, 8, zlib.compress(bytes(50 * MIB), 9))), READY),
    dataset("png-cut-short", "x.zip", one(GOOD[:-30])),
    dataset("png-with-a-false-checksum", "x.zip", one(GOOD.replace(b"IDAT", b"IDAT", 1)[:-20] + bytes(20))),
    dataset("png-with-a-text-of-100-megabytes", "x.zip", one(png(8, 8, None, TEXT_BOMB))),
    dataset("bmp-of-2^40-pixels", "x.zip", one(BMP, "a/1.bmp")),
    dataset("webp-of-2^48-pixels", "x.zip", one(WEBP, "a/1.webp")),
    dataset("jpeg-of-65535-by-65535", "x.zip", one(JPEG, "a/1.jpg")),
    dataset("svg-as-a-png", "x.zip", one(SVG)),
    dataset("script-in-the-archive", "x.zip", one(b"#!/bin/sh\n", "a/run.sh")),
    dataset("picture-archive-that-unpacks-to-more", "x.zip", lambda: zipped(*((f"a/{k}.png", bytes(60 * MIB)) for k in range(8)), packed=True)),  # noqa: E501
    dataset("picture-of-65-megabytes", "x.zip", lambda: zipped(("a/1.png", GOOD + bytes(65 * MIB)), packed=True)),
    *(dataset(f"picture-at-{ascii(name)[:30]}", "x.zip", pictures((name, GOOD), ("b/2.png", GOOD))) for name in (
        "../a/1.png", "/a/1.png", "a\\1.png", "C:/1.png", "a/\n1.png", "a/\u202e1.png",
    )),
    dataset("pictures-twice-by-another-spelling", "x.zip", pictures(("a/1.png", GOOD), ("a//1.png", GOOD))),
    dataset("sounds-among-pictures", "x.zip", one(sound(100), "a/1.wav")),
    dataset("sound-that-declares-more", "x.zip", pictures(("a/1.wav", sound(100, 1 << 31)), ("b/2.wav", sound(100))), ARRAYS),  # noqa: E501
    dataset("table-of-labels-of-17-megabytes", "x.zip", lambda: pictures(("1.png", GOOD), ("labels.csv", b"x" * (17 * MIB)))),  # noqa: E501
    *(dataset(f"tar-with-{name}", "x.tar", tar(("a/1.png", b""), kind=kind, link="/etc/passwd")) for name, kind in (
        ("a-symlink", tarfile.SYMTYPE), ("a-hard-link", tarfile.LNKTYPE), ("a-device", tarfile.CHRTYPE),
        ("a-block-device", tarfile.BLKTYPE), ("a-pipe", tarfile.FIFOTYPE), ("a-sparse-file", tarfile.GNUTYPE_SPARSE),
    )),
    *(dataset(f"tar-member-at-{ascii(name)[:30]}", "x.tar", tar((name, GOOD))) for name in (
        "../1.png", "/1.png", "a/../../1.png", "a\\..\\1.png",
    )),
    dataset("tar-with-a-false-checksum", "x.tar", GOOD_TAR[:148] + b"000000\0 " + GOOD_TAR[156:]),
    dataset("tar-that-declares-more", "x.tar", checksummed(GOOD_TAR[:124] + b"77777777777\0" + GOOD_TAR[136:512]) + GOOD_TAR[512:]),  # noqa: E501
    dataset("tar-of-a-negative-size", "x.tar", checksummed(GOOD_TAR[:124] + b"\xff" * 12 + GOOD_TAR[136:512]) + GOOD_TAR[512:]),  # noqa: E501
    dataset("tar-with-a-name-of-two-megabytes", "x.tar", lambda: tar(("x" * (2 * MIB), GOOD), fmt=tarfile.GNU_FORMAT)),
    dataset("tar-member-twice", "x.tar", tar(("a/1.png", GOOD), ("a/1.png", GOOD))),
    dataset("tar-of-300000-empty-files", "x.tar.gz", lambda: gzip.compress(b"".join(checksummed(b"%-100s" % (b"a/%d.png\0" % k) + b"0000644\0" + b"0" * 7 + b"\0" + b"0" * 7 + b"\0" + b"0" * 11 + b"\0" + b"0" * 11 + b"\0" + b" " * 8 + b"0" + bytes(100) + b"ustar\x0000" + bytes(247)) for k in range(150_000)), 1)),  # noqa: E501
    dataset("tar-gz-bomb", "x.tar.gz", lambda: gzip.compress(tar(("a/1.png", bytes(60 * MIB)), ("a/2.png", bytes(60 * MIB)), ("a/3.png", bytes(60 * MIB))), 9)),  # noqa: E501
    dataset("gzip-cut-short", "x.tar.gz", gzip.compress(GOOD_TAR)[:-10]),
]  # fmt: skip

STATE_CASES = [
    Case("new-weights-of-another-shape", "state", {"w.safetensors": safetensors({"w": {"dtype": "F32", "shape": [1 << 20, 1 << 20], "data_offsets": [0, 4]}}, bytes(4))}, "state-mismatch"),  # noqa: E501
    Case("new-weights-beyond-the-file", "state", {"w.safetensors": safetensors({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}, bytes(4))}, "state-mismatch"),  # noqa: E501
    Case("new-weights-of-nan", "state", {"w.safetensors": safetensors({"w": {"dtype": "F32", "shape": [4, 4], "data_offsets": [0, 64]}}, struct.pack("<f", float("nan")) * 16)}, "state-mismatch"),  # noqa: E501
]  # fmt: skip
ALL = [*ARRAY_CASES, *MEDIA_CASES, *STATE_CASES]
