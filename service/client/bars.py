"""A bar for uploads, for whoever watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def upload_bar(
    name: str, size_bytes: int, progress: Callable[[int, int], None] | None
) -> Iterator[Callable[[int, int], None]]:
    """Whom to tell of an upload's progress: the caller's ``progress``, else a bar on standard error if that is seen."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield lambda sent_bytes, all_bytes: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        label = TextColumn("{task.description}", markup=False)
        console = Console(stderr=True)
        with Progress(label, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console) as bar:
            task = bar.add_task("".join(letter if letter.isprintable() else "?" for letter in name), total=size_bytes)
            yield lambda sent_bytes, _: bar.update(task, completed=sent_bytes)
