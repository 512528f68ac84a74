"""What writes one upload, wherever its bytes grow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self


class UploadWriter(ABC):
    """The writer of one upload, for as long as it is open."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of the upload, with those that were written here."""

    @property
    @abstractmethod
    def own_sha256(self) -> bytes:
        """Digest of what this writer has written since ``digest_own``."""

    @abstractmethod
    def digest_own(self) -> None:
        """Digest what this writer is about to write."""

    @abstractmethod
    def begin_anew(self) -> None:
        """Write from byte 0 on; what earlier writers wrote stays until ``keep``."""

    @abstractmethod
    def clear(self) -> None:
        """Throw away everything, earlier writers' bytes too."""

    @abstractmethod
    def undo(self) -> None:
        """Throw away what this writer has written."""

    @abstractmethod
    def keep(self) -> None:
        """Make what was written durable."""

    @abstractmethod
    def write(self, *blocks: bytes) -> None:
        """Append blocks.

        Raises:
            StorageFullError: there is no room.
        """

    @abstractmethod
    def sha256(self) -> str:
        """Lowercase hex digest of the whole upload."""

    @abstractmethod
    def store(self, sha256: str) -> None:
        """Put the whole upload, which has this digest, into the store; it stays here, too, until ``forget``."""

    @abstractmethod
    def forget(self, sha256: str | None) -> None:
        """It lies in the store alone from now on; None: it was complete before this writer came."""
