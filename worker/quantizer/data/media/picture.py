"""One picture: decoded, resized and cut as torchvision does with Pillow.

Source: torchvision.datasets.folder.pil_loader, transforms.functional.resize (``_compute_resized_output_size``) and
center_crop. Only named formats are opened, and nothing is decoded before its size is known.
"""

from __future__ import annotations

import io
import struct
import zlib
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from service.contracts.preprocessing import PictureSpec, ResizeSpec
from service.contracts.sheets import SHEET_SIDE, sheet_corner, sheet_size
from worker.quantizer.data.media.members import refuse
from worker.quantizer.data.stored import Array

# Resizing without antialias: pixels are taken between their neighbours alone, however much a picture shrinks.
#
# As torch.nn.functional.interpolate(mode="bilinear" | "bicubic", align_corners=False) on float32, clamped and rounded
# to 8 bits.

# Keys' kernel as torch and OpenCV have it.
_CUBIC_A = -0.75


def resample(picture: Array, height: int, width: int, *, cubic: bool) -> Array:
    """A picture at another size.

    Args:
        picture: uint8 [h, w] or [h, w, channels].
        height: of the result.
        width: of the result.
        cubic: bicubic, else bilinear.

    Returns:
        uint8 [height, width] or [height, width, channels].
    """
    values = picture.astype(np.float32)
    values = _along(values, 1, width, cubic)
    values = _along(values, 0, height, cubic)
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)


def _along(values: Array, axis: int, size: int, cubic: bool) -> Array:
    places, weights = _taps(values.shape[axis], size, cubic)
    shape = [1] * values.ndim
    shape[axis] = size
    taps = [np.take(values, places[k], axis) * weights[k].reshape(shape) for k in range(len(places))]
    total: Array = taps[0]
    for tap in taps[1:]:
        total = total + tap
    return total


@lru_cache(maxsize=64)
def _taps(before: int, after: int, cubic: bool) -> tuple[Array, Array]:
    """Places int64 [taps, after] and weights float32 [taps, after] of the pixels that make one."""
    # float32 as torch has it: where a value lies between two levels, the last bits of the places round it
    at = np.float32(before / after) * (np.arange(after, dtype=np.float32) + np.float32(0.5)) - np.float32(0.5)
    if not cubic:
        at = np.maximum(at, np.float32(0))
    first = np.floor(at).astype(np.int64)
    t = at - first.astype(np.float32)
    if cubic:
        places = np.stack([first + k for k in (-1, 0, 1, 2)])
        weights = np.stack([_outer(t + 1), _inner(t), _inner(1 - t), _outer(2 - t)])
    else:
        places, weights = np.stack([first, first + 1]), np.stack([1 - t, t])
    return np.clip(places, 0, before - 1), weights.astype(np.float32)


def _inner(x: Array) -> Array:
    """The kernel for distances up to 1."""
    return ((_CUBIC_A + 2) * x - (_CUBIC_A + 3)) * x * x + 1


def _outer(x: Array) -> Array:
    """The kernel for distances from 1 to 2."""
    return ((_CUBIC_A * x - 5 * _CUBIC_A) * x + 8 * _CUBIC_A) * x - 4 * _CUBIC_A


FORMATS = ("JPEG", "PNG", "WEBP", "BMP")
MAX_PIXELS = 64 << 20
_MODES = {"rgb": "RGB", "grey": "L"}
_FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
# What Pillow's decoders raise for damaged files; a lack of memory is no fault of the file.
_DAMAGE = (OSError, SyntaxError, ValueError, TypeError, ArithmeticError, LookupError, AttributeError, EOFError,
           RuntimeError, struct.error, zlib.error)  # fmt: skip
_HINT = "Save it again as JPEG, PNG, WebP or BMP, or leave it out."


def open_picture(name: str, data: bytes) -> Image.Image:
    """The picture, its header read and its size within bounds; nothing is decoded.

    Raises:
        DatasetFormatError: not of the named formats, damaged, or of too many pixels; names the file.
    """
    _check_webp(name, data)
    try:
        picture = Image.open(io.BytesIO(data), formats=FORMATS)
    except Image.DecompressionBombError:
        refuse(name, f"contains more than {MAX_PIXELS} pixels", "Store pictures at the size that they are used at.")
    except UnidentifiedImageError:
        refuse(name, "is no picture of a known format (JPEG, PNG, WebP, BMP)", _HINT)
    except _DAMAGE as error:
        refuse(name, f"is damaged: {error}", _HINT)
    _check_pixels(name, picture.width, picture.height)
    return picture


def decode(name: str, picture: Image.Image, spec: PictureSpec) -> Array:
    """The sample that a picture becomes: uint8 [height, width, 3], or [height, width] for grey.

    Raises:
        DatasetFormatError: its bytes are damaged, or it would become too large; names the file.
    """
    try:
        picture = picture.convert(_MODES[spec.colour])
    except _DAMAGE as error:
        refuse(name, f"is damaged: {error}", _HINT)
    if spec.resize is not None:
        picture = _resize(name, picture, spec.resize)
    if spec.crop is not None:
        picture = center_crop(picture, *spec.crop)
    return np.asarray(picture)


def resized_size(width: int, height: int, spec: ResizeSpec) -> tuple[int, int]:
    """Width and height after the resize."""
    if spec.size is not None:
        return spec.size[1], spec.size[0]
    if spec.shorter_side is None:
        raise AssertionError("one of the two is given")
    shorter, longer = sorted((width, height))
    other = int(spec.shorter_side * longer / shorter)
    return (spec.shorter_side, other) if width <= height else (other, spec.shorter_side)


def center_crop(picture: Image.Image, height: int, width: int) -> Image.Image:
    """The middle of a picture, which is padded with black where it is smaller."""
    if width > picture.width or height > picture.height:
        left, top = max(0, width - picture.width) // 2, max(0, height - picture.height) // 2
        padded = Image.new(picture.mode, (max(width, picture.width), max(height, picture.height)))
        padded.paste(picture, (left, top))
        picture = padded
    # round() gives the even one of two equally near integers, and so does torchvision
    top, left = round((picture.height - height) / 2.0), round((picture.width - width) / 2.0)
    return picture.crop((left, top, left + width, top + height))


def final_size(width: int, height: int, spec: PictureSpec) -> tuple[int, int]:
    """Height and width of the sample that a picture of this size becomes."""
    if spec.size is not None:
        return spec.size
    if spec.resize is not None:
        width, height = resized_size(width, height, spec.resize)
    return height, width


def _resize(name: str, picture: Image.Image, spec: ResizeSpec) -> Image.Image:
    size = resized_size(picture.width, picture.height, spec)
    _check_pixels(name, *size)
    if size == picture.size:
        return picture
    if spec.antialias or spec.interpolation == "nearest":
        return picture.resize(size, _FILTERS[spec.interpolation])
    return Image.fromarray(resample(np.asarray(picture), size[1], size[0], cubic=spec.interpolation == "bicubic"))


def _check_pixels(name: str, width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        refuse(
            name,
            f"needs {width} x {height} pixels; at most {MAX_PIXELS} are accepted",
            "Store pictures at the size that they are used at.",
        )


def _check_webp(name: str, data: bytes) -> None:
    """The canvas of a WebP file, which its decoder would allocate as soon as the file is opened."""
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP" or len(data) < 30:
        return
    bits: dict[bytes, tuple[int, int]] = {
        b"VP8X": (int.from_bytes(data[24:27], "little") + 1, int.from_bytes(data[27:30], "little") + 1),
        b"VP8L": (_bits(data, 0) + 1, _bits(data, 14) + 1),
        b"VP8 ": (int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF),
    }
    if data[12:16] in bits:
        _check_pixels(name, *bits[data[12:16]])


def _bits(data: bytes, first: int) -> int:
    """14 bits of a lossless WebP's header."""
    return (int.from_bytes(data[21:25], "little") >> first) & 0x3FFF


def sheet(samples: Array) -> Any:
    """Small pictures in rows, side by side, as one picture; see ``service.contracts.sheets``.

    Args:
        samples: uint8 [n, height, width, 3] or [n, height, width].
    """
    page = Image.new("RGB", sheet_size(len(samples)), "white")
    for k, sample in enumerate(samples):
        small = Image.fromarray(sample)
        small.thumbnail((SHEET_SIDE, SHEET_SIDE))
        left, top = sheet_corner(k)
        page.paste(small, (left + (SHEET_SIDE - small.width) // 2, top + (SHEET_SIDE - small.height) // 2))
    return page
