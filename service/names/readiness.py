"""Whether a model or a dataset may be used: asked wherever one is taken."""

from __future__ import annotations

from service.contracts.errors import Problem
from service.names.kinds import Kind, Named


def require_ready(kind: Kind[Named], row: Named, *, pointer: str) -> None:
    """Let nothing be done with what is not ready.

    Raises:
        NounNotReadyError: validation has not ended.
        NounRejectedError: it was found unusable.
    """
    if row.status == "validating":
        raise kind.not_ready(row.id, pointer=pointer)
    if row.status == "rejected":
        reasons = [Problem.model_validate(problem) for problem in row.problems or []]
        raise kind.rejected(row.id, pointer=pointer, reasons=reasons)
