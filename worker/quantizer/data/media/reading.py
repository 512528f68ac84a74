"""From an archive of pictures or sounds to arrays: files are listed and labelled, one array decodes them."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import numpy as np

from service.contracts.dataset import ArchiveKind, MediaSummary, PreprocessingSpec, Waveform, Waveforms
from service.contracts.errors import DatasetArraysError
from service.contracts.preprocessing import IMAGES, SOUNDS, PictureSpec, SoundSpec
from service.contracts.sheets import sheet_numbers
from worker.quantizer.data.media import picture
from worker.quantizer.data.media.decoded import DecodedArray
from worker.quantizer.data.media.labels import MAX_TABLE_BYTES, Labels, by_folder, by_table, table_of
from worker.quantizer.data.media.members import Archive, Content, MediaFile, content_of, refuse
from worker.quantizer.data.media.sound import CODEC, FULL_SCALE, SoundReader, read_wave
from worker.quantizer.data.media.tar import read_tar
from worker.quantizer.data.media.zipped import read_zip
from worker.quantizer.data.profile import wave_numbers, waveform
from worker.quantizer.data.stored import Array, ArraySource, MemoryArray

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
        _misplaced("sounds", "the archive holds pictures")
    return preprocessing.pictures or PictureSpec()


def _spec_for_sounds(preprocessing: PreprocessingSpec) -> SoundSpec:
    if preprocessing.pictures is not None:
        _misplaced("pictures", "the archive holds sounds")
    if preprocessing.sounds is None:
        raise DatasetArraysError(
            "the archive holds sounds, and the preprocessing does not say their rate and length",
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
        _misplaced("sounds", "the file holds arrays")
    if preprocessing.pictures is not None and preprocessing.pictures.changes:
        _misplaced("pictures", "the file holds arrays, which are neither resized nor cut")


def _misplaced(word: str, why: str) -> NoReturn:
    raise DatasetArraysError(
        f"the preprocessing says what becomes of {word}, and {why}",
        hint=f"Leave {word} out of the preprocessing.",
        pointer=f"/preprocessing/{word}",
    )
