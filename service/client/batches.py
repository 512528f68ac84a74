"""Batches: many jobs submitted, watched and canceled as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from service.batches.schemas import BatchEventOut, BatchListed, BatchOut
from service.client.connection import Resource, id_of, with_config
from service.client.driving import Call, Each
from service.client.following import Follower, log_of_batch
from service.client.options import BatchRequest
from service.client.resources import ResourceCalls
from service.client.steps import Items, Steps, heard
from service.contracts.documents import config_document
from service.jobs.schemas import TERMINAL
from service.models.schemas import ModelOut

_PATH = "/v1/batches"


class BatchCalls(ResourceCalls):
    """Calls of ``/v1/batches``."""

    @Call
    def submit_batch(self, models: Sequence[ModelOut | str] = (), **request: Unpack[BatchRequest]) -> Steps[BatchOut]:
        """Submit a job for each model with each preset and each config: all of them, or none.

        What is still being validated is waited for.

        Args:
            models: models, their ids or references.
            presets: names, such as ["int8", "npu_int8"]; none: what the configs say.
            configs: laid over each preset, as sparse as can be; none: the presets as they are.
            calibration: a dataset for all.
            evaluation: another, to measure accuracy on.
            members: in place of all these: each a dict, the body of ``POST /v1/jobs``.
            name: of the batch, and of the grid's jobs.
            labels: likewise.
            priority: of all jobs of the grid.
            device: likewise.
            reuse: take jobs that would give the same, where there are such.
            idempotency_key: default: a fresh one, so that only this call's own retries are the same request.

        Raises:
            RejectedError: a model or a dataset was rejected.
            ApiError: ``batch-refused``; ``where`` of its problem names each member that is wrong.
            QuotaExceededError: the tenant may not have so many jobs more.
        """
        body: dict[str, Any] = {"name": request.get("name"), "labels": dict(request.get("labels") or {})}
        members = request.get("members", ())
        if members:
            body["members"] = [with_config(member) for member in members]
        for model in models:
            yield from self._ready_id(model)
        data = {
            "calibration_dataset_id": request.get("calibration"),
            "evaluation_dataset_id": request.get("evaluation"),
        }
        grid: dict[str, Any] = {
            "models": [id_of(model) for model in models],
            "presets": list(request.get("presets", ())),
            "configs": [config_document(config) for config in request.get("configs", ())],
            "priority": request.get("priority", 0),
            "device": request.get("device", "auto"),
            "reuse": request.get("reuse", False),
            **(yield from self._ready_ids(data)),
        }
        # with members, what is said beside them is sent, too: the service tells that it belongs into them
        body |= {field: value for field, value in grid.items() if value not in ([], 0, "auto", False, None)}
        return BatchOut.model_validate((yield from self._create(_PATH, body, request.get("idempotency_key"))))

    @Call
    def batch(self, batch: Resource | str, *, wait_seconds: float = 0.0) -> Steps[BatchOut]:
        """The batch with one summary; with ``wait_seconds``, up to 30, once it has ended, if that is sooner."""
        path = f"{_PATH}/{id_of(batch)}"
        return (yield from self._get(BatchOut, path, wait_seconds=wait_seconds))

    @Each
    def batches(self, *, name: str | None = None, limit: int | None = None) -> Items[BatchListed, None]:
        """Batches, the newest first, read page by page; at most ``limit``, of this name."""
        yield from self._all(_PATH, BatchListed, {"name": name}, limit)

    @Each
    def follow_batch(self, batch: Resource | str, *, after: str = "0") -> Items[BatchEventOut, None]:
        """The events of all its jobs, each once, as they happen; ends when the batch has ended.

        Args:
            batch: the batch, or its id.
            after: only events behind this ``position``.
        """
        yield from Follower(self, log_of_batch(id_of(batch)), after).events()

    @Call
    def wait_batch(
        self,
        batch: Resource | str,
        *,
        on_event: Callable[[BatchEventOut], None] | None = None,
        timeout_seconds: float | None = None,
    ) -> Steps[BatchOut]:
        """Wait until all its jobs have ended, however they did.

        Args:
            batch: the batch, or its id.
            on_event: told each event of its jobs meanwhile, from the first one on.
            timeout_seconds: how long; None: as long as it takes.

        Raises:
            WaitTimeoutError: it takes longer than that.
        """
        path = f"{_PATH}/{id_of(batch)}"
        if on_event is None:
            return (yield from self._get_once(BatchOut, path, lambda seen: seen.state in TERMINAL, timeout_seconds))
        yield from heard(Follower(self, log_of_batch(id_of(batch)), "0", timeout_seconds).events(), on_event)
        return (yield from self._get(BatchOut, path))

    @Call
    def cancel_batch(self, batch: Resource | str) -> Steps[BatchOut]:
        """Cancel all its jobs; those that have ended, and those that were reused, stay as they are."""
        path = f"{_PATH}/{id_of(batch)}/cancel"
        return BatchOut.model_validate((yield from self._json("POST", path, repeatable=True)))

    @Call
    def retry_batch(self, batch: Resource | str, *, idempotency_key: str | None = None) -> Steps[BatchOut]:
        """Give each member that has failed or was canceled a new job, once the batch has ended."""
        path = f"{_PATH}/{id_of(batch)}/retry-failed"
        return BatchOut.model_validate((yield from self._create(path, {}, idempotency_key)))

    @Call
    def delete_batch(self, batch: Resource | str) -> Steps[None]:
        """Forget a batch that has ended; its jobs stay."""
        yield from self._request("DELETE", f"{_PATH}/{id_of(batch)}")
