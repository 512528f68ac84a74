"""Errors around artifacts."""

from __future__ import annotations

from service.contracts.errors import QuantmillError
from service.contracts.http_errors import HttpError


class ArtifactNotFoundError(QuantmillError):
    """There is no such artifact (or it belongs to somebody else)."""

    code = "artifact-not-found"
    title = "No such artifact"
    status = 404

    def __init__(self, artifact_id: str) -> None:
        super().__init__(
            f"There is no artifact {artifact_id!r}.",
            path_parameter="artifact_id",
            hint="GET /v1/jobs/{id}/artifacts lists those of a job.",
        )


class RangeNotSatisfiableError(HttpError):
    """The range lies outside the file."""

    code = "range-not-satisfiable"
    title = "The range lies outside the file"
    status = 416

    def __init__(self, size_bytes: int) -> None:
        super().__init__(
            f"The file has {size_bytes} bytes; the range begins after them.",
            hint="Ask for a range within the file.",
            header="Range",
            size_bytes=size_bytes,
        )
        self.size_bytes = size_bytes

    def headers(self) -> dict[str, str]:
        """Carries the file's size."""
        return {"Content-Range": f"bytes */{self.size_bytes}"}
