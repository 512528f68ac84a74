"""What may be wrong with a request for or about a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.contracts.errors import FieldProblem, QuantmillError

# Of each member so many of its problems are told.
_MOST_TOLD = 5


class BatchNotFoundError(QuantmillError):
    """The tenant has no such batch."""

    code = "batch-not-found"
    title = "No such batch"
    status = 404

    def __init__(self, batch_id: str) -> None:
        super().__init__(
            f"There is no batch {batch_id[:64]!r}.", path_parameter="batch_id", hint="GET /v1/batches lists them."
        )


class BatchRefusedError(QuantmillError):
    """Some members of the batch cannot be run as they were asked for; none was stored. ``where`` names all of them."""

    code = "batch-refused"
    title = "Members of the batch are not valid"
    status = 422

    def __init__(self, members: int, faults: Sequence[tuple[dict[str, Any], Sequence[FieldProblem]]]) -> None:
        named = [told["member"] for told, _ in faults]
        super().__init__(
            f"{len(named)} of {members} members cannot be run: {', '.join(map(str, named[:20]))}"
            + ("" if len(named) <= 20 else ", ..."),
            hint="Nothing was stored. Correct or leave out what `where.members` names, each with its reason.",
            errors=tuple(problem for _, problems in faults for problem in problems[:_MOST_TOLD]),
            members=[told for told, _ in faults],
        )


class BatchNotEndedError(QuantmillError):
    """Jobs of the batch are queued or running."""

    code = "batch-not-ended"
    title = "The batch has not ended"
    status = 409

    def __init__(self, batch_id: str, live: int) -> None:
        super().__init__(
            f"Of the batch {batch_id} {live} jobs are queued or running.",
            hint="Wait for its end, or cancel it first: POST /v1/batches/{id}/cancel.",
        )


class NothingToRetryError(QuantmillError):
    """No member of the batch has failed or was canceled, or it was retried as often as it may be."""

    code = "nothing-to-retry"
    title = "There is nothing to run again"
    status = 409
