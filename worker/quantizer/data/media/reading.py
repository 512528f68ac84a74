"""From an archive of pictures or sounds to arrays: files are listed and labelled, one array decodes them."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

from service.contracts.dataset import ArchiveKind, MediaSummary, PreprocessingSpec, Waveform, Waveforms
from service.contracts.errors import DatasetArraysError, EngineError
from service.contracts.preprocessing import IMAGES, SOUNDS, PictureSpec, SoundSpec
from service.contracts.sheets import sheet_numbers
from worker.quantizer.data.media import picture
from worker.quantizer.data.media.archives import read_tar, read_zip
from worker.quantizer.data.media.members import (
    MAX_TABLE_BYTES,
    Archive,
    Content,
    Labels,
    MediaFile,
    by_folder,
    by_table,
    content_of,
    refuse,
    table_of,
)
from worker.quantizer.data.media.sound import CODEC, FULL_SCALE, SoundReader, read_wave
from worker.quantizer.data.stored import Array, ArraySource, MemoryArray
from worker.quantizer.data.summary import wave_numbers, waveform

# An array whose samples are decoded from files one by one, and kept for later passes in a file without a name.
#
# A job reads its data several times. Decoding a picture takes milliseconds, reading it again from the spool some tens
# of microseconds; so what the first pass decodes is written down where that is bounded, and decoded anew where it is
# not.

MAX_SPOOL_BYTES = 16 << 30
Decode = Callable[[int, MediaFile, bytes], Array]


class DecodedArray:
    """An ArraySource over the files of an archive.

    Args:
        name: of the array.
        dtype: of the samples.
        sample_shape: of every sample.
        archive: holds the files.
        files: one per sample, in the archive's order.
        decode: makes a sample of a file's number, name and bytes.
    """

    def __init__(
        self,
        name: str,
        dtype: np.dtype[Any],
        sample_shape: tuple[int, ...],
        archive: Archive,
        files: Sequence[MediaFile],
        decode: Decode,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = (len(files), *sample_shape)
        self.refusal: str | None = None
        self._archive = archive
        self._files = files
        self._decode = decode
        self._lock = threading.Lock()
        self._spool: _Spool | None = None

    def open(self) -> _SpooledReader | _DecodingReader:
        """A reader that starts at sample 0."""
        spool = self._opened_spool()
        return _DecodingReader(self) if spool is None else _SpooledReader(spool)

    def at(self, numbers: Sequence[int]) -> Array:
        """The samples of these numbers, which ascend: [len(numbers), ...]."""
        files = [self._files[number] for number in numbers]
        contents = zip(numbers, files, self._archive.contents(files), strict=True)
        return np.stack([self._decode(number, file, data) for number, file, data in contents])

    def decoded(self) -> Generator[Array, None, None]:
        """Every sample, from the first on."""
        contents = self._archive.contents(self._files)
        for number, (file, data) in enumerate(zip(self._files, contents, strict=True)):
            yield self._decode(number, file, data)

    def _opened_spool(self) -> _Spool | None:
        """Where samples are kept; None if there are too many of them."""
        with self._lock:
            if self._spool is None:
                folder = tempfile.gettempdir()
                bound = min(MAX_SPOOL_BYTES, shutil.disk_usage(folder).free // 2)
                if self.dtype.itemsize * math.prod(self.shape) > bound:
                    return None
                self._spool = _Spool(self)
            return self._spool


class _Spool:
    """What has been decoded so far, in a temporary file that is gone with this object."""

    def __init__(self, array: DecodedArray) -> None:
        self.dtype, self.shape = array.dtype, array.shape
        self._sample_bytes = array.dtype.itemsize * math.prod(array.shape[1:])
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="quantmill-spool-")  # noqa: SIM115 - as long as this lives
        self._lock = threading.Lock()
        self._filled = 0
        self._coming = array.decoded()
        self._failure: Exception | None = None

    def rows(self, start: int, count: int) -> Array:
        """Samples from ``start`` on, [count, ...]."""
        with self._lock:
            while self._filled < start + count:
                self._add()
        block = np.empty((count, *self.shape[1:]), self.dtype)
        if block.nbytes:
            target, at = memoryview(block.reshape(-1).view(np.uint8)), start * self._sample_bytes  # type: ignore[arg-type]
            while target:
                got = os.preadv(self._file.fileno(), [target], at)
                if not got:
                    raise EngineError("decoded samples are missing from the temporary folder")
                target, at = target[got:], at + got
        return block

    def _add(self) -> None:
        """Decode one more sample. A file that cannot be decoded cannot be decoded by later readers either."""
        if self._failure is not None:
            raise self._failure
        try:
            sample = next(self._coming)
            self._file.write(np.ascontiguousarray(sample, self.dtype).tobytes())
            self._file.flush()
        except Exception as error:
            self._failure = error
            raise
        self._filled += 1
        if self._filled == self.shape[0]:
            self._coming.close()  # and with it the archive's file


class _SpooledReader:
    """Reads from the spool, which decodes what is not there yet."""

    def __init__(self, spool: _Spool) -> None:
        self._spool = spool
        self._at = 0

    def read(self, count: int) -> Array:
        count = min(count, self._spool.shape[0] - self._at)
        block = self._spool.rows(self._at, count)
        self._at += count
        return block

    def close(self) -> None:
        """The spool stays for other readers."""


class _DecodingReader:
    """Decodes on every pass."""

    def __init__(self, array: DecodedArray) -> None:
        self._array = array
        self._left = array.shape[0]
        self._coming = array.decoded()

    def read(self, count: int) -> Array:
        count = min(count, self._left)
        block = np.empty((count, *self._array.shape[1:]), self._array.dtype)
        for row in range(count):
            block[row] = next(self._coming)
        self._left -= count
        return block

    def close(self) -> None:
        self._coming.close()


LABELS_ARRAY = "labels"


@dataclass
class Findings:
    """What decoding tells of the files as they were; each file counts once, however often it is decoded."""

    codecs: Counter[str] = field(default_factory=Counter)
    smallest: tuple[int, ...] = ()
    largest: tuple[int, ...] = ()
    waves: dict[int, Waveform] = field(default_factory=dict)
    _noted: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, number: int, codec: str, size: tuple[int, ...]) -> None:
        """Take in the file of this number."""
        with self._lock:
            if number != self._noted:
                return
            self._noted += 1
            self.codecs[codec] += 1
            if not self.smallest or np.prod(size) < np.prod(self.smallest):
                self.smallest = size
            if not self.largest or np.prod(size) > np.prod(self.largest):
                self.largest = size


@dataclass(frozen=True)
class Media:
    """An archive that has been listed; ``stored`` are its arrays: the decoded one and the labels, if there are any.

    ``sample_rate_hz`` is that of sounds, None for pictures.
    """

    archive: ArchiveKind
    content: Content
    decoded: DecodedArray
    labels: Labels | None
    findings: Findings
    sample_rate_hz: int | None = None

    @property
    def stored(self) -> dict[str, ArraySource]:
        """The arrays by name."""
        arrays: dict[str, ArraySource] = {self.decoded.name: self.decoded}
        if self.labels is not None:
            arrays[LABELS_ARRAY] = MemoryArray(LABELS_ARRAY, self.labels.values)
        return arrays

    def summary(self) -> MediaSummary:
        """What is known of the files, once all have been decoded."""
        return MediaSummary(
            archive=self.archive,
            codecs=dict(sorted(self.findings.codecs.items())),
            classes=None if self.labels is None else self.labels.classes,
            smallest=self.findings.smallest,
            largest=self.findings.largest,
        )

    def waveforms(self) -> Waveforms | None:
        """Some sounds, cut but not padded, once all have been decoded; None for pictures."""
        if self.sample_rate_hz is None:
            return None
        return Waveforms(
            array=self.decoded.name,
            sample_rate_hz=self.sample_rate_hz,
            full_scale=FULL_SCALE,
            samples=tuple(wave for _, wave in sorted(self.findings.waves.items())),
        )

    def write_thumbnails(self, path: Path) -> bool:
        """Write a PNG of 16 samples as the model sees them before scale and mean; False for sounds."""
        if self.content != "pictures":
            return False
        numbers = sheet_numbers(self.decoded.shape[0])
        picture.sheet(self.decoded.at(numbers)).save(path, format="PNG")
        return True


@dataclass(frozen=True)
class ListedMedia:
    """The pictures or sounds of an archive and their labels, before anything is decoded."""

    archive: Archive
    files: tuple[MediaFile, ...]
    content: Content
    labels: Labels | None


def read_media(path: Path, kind: ArchiveKind, preprocessing: PreprocessingSpec, *, max_total_bytes: int) -> Media:
    """List the files of an archive and say how they become arrays. Decodes nothing but the header of the first file.

    Raises:
        DatasetFormatError: damaged or hostile; names the member.
        DatasetLabelsError: labels that do not belong to the files.
        DatasetArraysError: the preprocessing is not for such an archive.
    """
    listed = list_media(path, kind, max_total_bytes=max_total_bytes)
    findings = Findings()
    if listed.content == "pictures":
        decoded = _pictures(listed, _spec_for_pictures(preprocessing), findings)
        return Media(kind, listed.content, decoded, listed.labels, findings)
    spec = _spec_for_sounds(preprocessing)
    decoded = _sounds(listed, spec, findings)
    return Media(kind, listed.content, decoded, listed.labels, findings, spec.sample_rate_hz)


def list_media(path: Path, kind: ArchiveKind, *, max_total_bytes: int) -> ListedMedia:
    """The files of an archive, in its order, with their labels.

    Raises:
        DatasetFormatError: damaged or hostile; names the member.
        DatasetLabelsError: labels that do not belong to the files.
    """
    archive: Archive
    if kind == "zip":
        archive = read_zip(path, max_total_bytes=max_total_bytes)
    else:
        archive = read_tar(path, kind, max_total_bytes=max_total_bytes)
    table = table_of(archive.files)
    files = tuple(file for file in archive.files if file != table)
    content = content_of(files)
    labels = by_folder(files) if table is None else by_table(files, table, _table_bytes(archive, table))
    return ListedMedia(archive, files, content, labels)


def _table_bytes(archive: Archive, table: MediaFile) -> bytes:
    if table.size_bytes > MAX_TABLE_BYTES:
        refuse(table.name, f"takes {table.size_bytes} bytes; at most {MAX_TABLE_BYTES} are accepted")
    (content,) = archive.contents([table])
    return content


def _pictures(listed: ListedMedia, spec: PictureSpec, findings: Findings) -> DecodedArray:
    size = spec.size
    if size is None:
        (data,) = listed.archive.contents(listed.files[:1])
        first = picture.open_picture(listed.files[0].name, data)
        size = picture.final_size(first.width, first.height, spec)
    expected = size if spec.colour == "grey" else (*size, 3)

    def decode(number: int, file: MediaFile, data: bytes) -> Array:
        found = picture.open_picture(file.name, data)
        sample = picture.decode(file.name, found, spec)
        if sample.shape != expected:
            refuse(
                file.name,
                f"gives {sample.shape[0]} x {sample.shape[1]} pixels, the first one {expected[0]} x {expected[1]}",
                "Give preprocessing.pictures a resize or a crop that makes all pictures one size.",
            )
        findings.note(number, str(found.format), (found.height, found.width))
        return sample

    return DecodedArray(IMAGES, np.dtype(np.uint8), expected, listed.archive, listed.files, decode)


def _sounds(listed: ListedMedia, spec: SoundSpec, findings: Findings) -> DecodedArray:
    reader = SoundReader(spec)
    traced = set(wave_numbers(len(listed.files)))

    def decode(number: int, file: MediaFile, data: bytes) -> Array:
        wave = read_wave(file.name, data)
        sample = reader.sample(file.name, wave)
        findings.note(number, CODEC, (len(wave.samples),))
        if number in traced and number not in findings.waves:
            findings.waves[number] = waveform(number, wave.samples[: spec.length])
        return sample

    return DecodedArray(SOUNDS, reader.dtype, spec.shape, listed.archive, listed.files, decode)


def _spec_for_pictures(preprocessing: PreprocessingSpec) -> PictureSpec:
    if preprocessing.sounds is not None:
        _misplaced("sounds", "the archive contains pictures")
    return preprocessing.pictures or PictureSpec()


def _spec_for_sounds(preprocessing: PreprocessingSpec) -> SoundSpec:
    if preprocessing.pictures is not None:
        _misplaced("pictures", "the archive contains sounds")
    if preprocessing.sounds is None:
        raise DatasetArraysError(
            "the archive contains sounds, and the preprocessing sets neither their rate nor their length",
            hint='Give preprocessing.sounds: {"sample_rate_hz": 16000, "length": 16000}.',
            pointer="/preprocessing/sounds",
        )
    return preprocessing.sounds


def refuse_for_arrays(preprocessing: PreprocessingSpec) -> None:
    """Refuse a spec for pictures or sounds where a file holds arrays already.

    Raises:
        DatasetArraysError: it would change them.
    """
    if preprocessing.sounds is not None:
        _misplaced("sounds", "the file contains arrays")
    if preprocessing.pictures is not None and preprocessing.pictures.changes:
        _misplaced("pictures", "the file contains arrays, which are not resized or cropped")


def _misplaced(word: str, why: str) -> NoReturn:
    raise DatasetArraysError(
        f"the preprocessing is for {word}, and {why}",
        hint=f"Leave {word} out of the preprocessing.",
        pointer=f"/preprocessing/{word}",
    )
