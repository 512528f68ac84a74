"""Pictures, sounds, and archives of them, good and bad, written without any code of the project."""

from __future__ import annotations

import functools
import gzip
import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

Kind = Literal["tar", "tar.gz", "zip"]
KINDS: tuple[Kind, ...] = ("tar", "tar.gz", "zip")


def noise(height: int, width: int, *, seed: int = 0, channels: int = 3) -> np.ndarray[Any, Any]:
    """A picture with some structure: smooth waves and noise, uint8 [height, width, channels], [height, width] for 1."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / (3 + c)) * np.cos(y / (5 + c)) * 60 + 128 for c in range(channels)], -1)
    values = np.clip(waves + rng.normal(0, 25, waves.shape), 0, 255).astype(np.uint8)
    return values[..., 0] if channels == 1 else values


def encoded(pixels: np.ndarray[Any, Any] | Image.Image, codec: str = "PNG", **options: Any) -> bytes:
    """A picture as the bytes of a file."""
    buffer = io.BytesIO()
    picture = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    picture.save(buffer, codec, **options)
    return buffer.getvalue()


def wav(samples: np.ndarray[Any, Any], rate: int = 16_000, *, channels: int = 1, bits: int = 16, tag: int = 1) -> bytes:
    """A WAV file."""
    data = samples.astype("<i2").tobytes()
    head = struct.pack("<HHIIHH", tag, channels, rate, rate * channels * bits // 8, channels * bits // 8, bits)
    body = b"WAVE" + b"fmt " + struct.pack("<I", len(head)) + head + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def archive(path: Path, files: Mapping[str, bytes], kind: Kind = "tar") -> Path:
    """An archive of these files, in their order."""
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as made:
            for name, data in files.items():
                made.writestr(name, data)
        return path
    with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as made:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            made.addfile(member, io.BytesIO(data))
    return path


@functools.cache
def huge_png(side: int) -> bytes:
    """A sound PNG of ``side`` x ``side`` black pixels, in a few hundred kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    row = b"\0" * (1 + (side + 7) // 8)
    packed = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


def gzip_of_zeros(path: Path, head: bytes, megabytes: int) -> Path:
    """``head`` and then zeros, packed."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(head)
        for _ in range(megabytes):
            file.write(bytes(1 << 20))
    return path
