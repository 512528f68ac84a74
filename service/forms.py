"""Forms with files, parsed as a stream: sender and quota are checked before any file is accepted.

What is taken waits on the store's disk, not in the folder of temporary files, which may be memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from tempfile import SpooledTemporaryFile

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

# Of a form that holds files, so much may be something else: a config, twice, and its fields.
FIELDS_BYTES = 4 * 1024 * 1024
# Those of a model, and some that were not chosen.
MOST_FILES = 300
Check = Callable[[FormData], None]
Count = Callable[[int, int], None]


class FilesParser(MultiPartParser):
    """As Starlette's, but for what is asked before files are taken.

    Args:
        request: carries the form.
        folder: where large files wait; they have no names there, and are gone with the process.
        check: given the fields before the first file, or all of them if there is none; raises to refuse the form.
        count: given each piece of a file, as the bytes of this file so far and those of this piece; raises as well.
    """

    spool_max_size = 64 * 1024

    def __init__(self, request: Request, folder: Path, check: Check, count: Count) -> None:
        super().__init__(request.headers, request.stream(), max_files=MOST_FILES)
        self._folder = folder
        self._check = check
        self._count = count
        self._checked = False
        self._file_bytes = self._fields_bytes = 0

    def on_headers_finished(self) -> None:
        """A part begins."""
        super().on_headers_finished()
        file = self._current_part.file
        if file is not None:
            self._check_once()
            self._file_bytes = 0
            spool = SpooledTemporaryFile(self.spool_max_size, dir=str(self._folder))  # noqa: SIM115 - closed by its form
            file.file = self._files_to_close_on_error[-1] = spool  # type: ignore[assignment]

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        """A part goes on."""
        if self._current_part.file is not None:
            self._file_bytes += end - start
            self._count(self._file_bytes, end - start)
        else:
            self._fields_bytes += end - start
            if self._fields_bytes > FIELDS_BYTES:
                raise MultiPartException(f"The fields have more than {FIELDS_BYTES} bytes.")
        super().on_part_data(data, start, end)

    async def parse(self) -> FormData:
        """The form."""
        async with aclosing(self.stream):
            form = await super().parse()
        self._check_once()
        return form

    def _check_once(self) -> None:
        if not self._checked:
            self._checked = True
            self._check(FormData(self.items))


async def keep_form(request: Request, folder: Path, check: Check, count: Count) -> None:
    """Read a form with files; ``request.form()`` has it from now on.

    Raises:
        HTTPException: it is none.
        QuantmillError: as ``check`` and ``count`` do.
    """
    try:
        request._form = await FilesParser(request, folder, check, count).parse()
    except MultiPartException as error:
        raise HTTPException(400, error.message) from None
