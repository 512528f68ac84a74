"""A large upload over connections that break: whole at the end, little memory, and how fast beside plain writing.

    python -m benchmarks.upload [--gib 2] [--breaks 3] [--times 3]

An API process of its own takes a file from ``quantmill.Client`` through a relay that cuts the connection so many times;
then once more the same bytes, and another file without the relay. Right before and right after each of the two the
same bytes are written and synchronized to the same disk, whose own pace comes and goes: the mean of both is what an
upload is held against. Printed: times, their ratios (throughput of the upload over that of writing), bytes that
travelled, and the process's memory above idle. Exits 1 if the stored file is not the one that was sent.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from quantmill import Client
from service.client.uploads import FileUpload
from service.db import migrate
from service.settings import Settings
from tests.support.breaking import BreakingProxy
from tests.support.server import ApiProcess

_MIB, _GIB = 1024**2, 1024**3
_KEY = "a-key-of-this-benchmark-alone"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--breaks", type=int, default=3)
    parser.add_argument("--times", type=int, default=3)
    asked = parser.parse_args()
    size_bytes = int(asked.gib * _GIB)
    ratios: dict[str, list[float]] = {}
    is_whole = True
    # a polite end of this process, too, has to take its gigabytes with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="quantmill-upload-", dir=Path.cwd()) as name:
        for number in range(asked.times):
            file = Path(name) / f"{number}.npz"
            digest = _write(file, size_bytes)
            with _api(Path(name) / f"data-{number}") as api:
                is_whole &= _round(api, file, digest, asked.breaks, ratios)
            file.unlink()
    for what, found in ratios.items():
        print(f"{what}: {statistics.median(found):.2f} (lowest {min(found):.2f}, highest {max(found):.2f})")
    return 0 if is_whole else 1


def _round(api: ApiProcess, file: Path, digest: str, breaks: int, ratios: dict[str, list[float]]) -> bool:
    size_bytes = file.stat().st_size
    idle = api.rss_bytes()
    relay = BreakingProxy(api.url)
    relay.breaks = [size_bytes // (breaks + 2)] * breaks
    with Client(relay.url, _KEY) as client:
        sent, broken, beside = _timed(client, file)
        travelled, relay.sent_bytes = relay.sent_bytes, 0
        begun = time.perf_counter()
        again = client.upload_file(file, progress=_silent)
        known = time.perf_counter() - begun
        repeated = relay.sent_bytes
    relay.close()
    stored = next(path for path in Path(api.settings.data_dir).rglob(digest) if path.is_file())
    is_whole = sent.sha256 == again.sha256 == digest == hashlib.file_digest(stored.open("rb"), "sha256").hexdigest()
    other = file.with_name("other.npz")
    _write(other, size_bytes)
    with Client(api.url, _KEY) as client:
        _, straight, plain = _timed(client, other)
    other.unlink()
    memory_mib = (api.rss_bytes(peak=True) - idle) / _MIB
    print(
        f"upload {straight:.1f} s, write and fsync {plain:.1f} s; with {breaks} broken connections {broken:.1f} s, "
        f"write {beside:.1f} s, {travelled / size_bytes:.2f} times the bytes travelled, "
        f"{'whole' if is_whole else 'DAMAGED'}; sent again {known:.1f} s, {repeated} bytes travelled; "
        f"memory {memory_mib:.0f} MiB above idle",
        flush=True,
    )
    ratios.setdefault("throughput of an upload over that of writing", []).append(plain / straight)
    ratios.setdefault(f"the same with {breaks} broken connections", []).append(beside / broken)
    return is_whole


def _timed(client: Client, file: Path) -> tuple[FileUpload, float, float]:
    """An upload, its seconds, and those of writing the same bytes before and after it, on average."""
    before = _write_again(file)
    begun = time.perf_counter()
    sent = client.upload_file(file, progress=_silent)
    seconds = time.perf_counter() - begun
    return sent, seconds, (before + _write_again(file)) / 2


@contextmanager
def _api(folder: Path) -> Iterator[ApiProcess]:
    folder.mkdir()
    url = f"sqlite:///{folder / 'service.db'}"
    migrate(url)
    api = ApiProcess(Settings(data_dir=folder, database_url=url, min_free_bytes=0, api_key=_KEY))
    try:
        yield api
    finally:
        api.close()


def _write(path: Path, size_bytes: int) -> str:
    """A file on the disk that no filesystem can make smaller; its sha256."""
    block, digest = secrets.token_bytes(16 * _MIB), hashlib.sha256()
    with path.open("wb") as file:
        for number in range(-(-size_bytes // len(block))):
            part = (number.to_bytes(8, "big") + block[8:])[: size_bytes - number * len(block)]
            file.write(part)
            digest.update(part)
        file.flush()
        os.fsync(file.fileno())  # or the disk would write it while it is timed
    return digest.hexdigest()


def _write_again(source: Path) -> float:
    """Seconds that plain writing and fsync of the same bytes take."""
    target = source.with_name("plain")
    begun = time.perf_counter()
    with source.open("rb") as read, target.open("wb") as written:
        while block := read.read(_MIB):
            written.write(block)
        written.flush()
        os.fsync(written.fileno())
    seconds = time.perf_counter() - begun
    target.unlink()
    return seconds


def _silent(_sent: int, _total: int) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
