"""A client with retries that writes down all that it does."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any

import httpx

from service.client import ApiError
from service.contracts.errors import Problem
from tests.fault.ledger import KEY_LABEL, Ledger
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import wait_for

# A fixed recipe that takes as little time as one can.
CONFIG: Mapping[str, Any] = {"preset": "int8", "evaluation": {"latency_runs": 1}}
ADAROUND: Mapping[str, Any] = {
    **CONFIG, "algorithms": [{"method": "adaround", "num_iterations": 20, "solver": "gradient", "accept": "always"}],
}  # fmt: skip
PASSING = frozenset({429, 502, 503, 504, 507})
_PAUSE_SECONDS = 0.1


class Client:
    """Submits jobs, again and again until the service has answered for good."""

    def __init__(self, url: str, ledger: Ledger, inputs: Mapping[str, str], *, timeout_seconds: float = 20.0) -> None:
        self._http = httpx.Client(base_url=url, timeout=timeout_seconds, trust_env=False)
        self._ledger = ledger
        self._inputs = dict(inputs)
        self._giving_up = threading.Event()

    def close(self) -> None:
        self._giving_up.set()
        self._http.close()

    def submit(self, key: str | None = None, *, config: Mapping[str, Any] = CONFIG) -> str:
        key = key or uuid.uuid4().hex
        found = wait_for(
            lambda: self.submit_once(key, config=config), seconds=PATIENCE_SECONDS, message=f"{key} was never accepted"
        )
        assert found is not None
        return found

    def submit_once(self, key: str, *, config: Mapping[str, Any] = CONFIG) -> str | None:
        """One request; the job's id, or None where it should be sent again."""
        body = {**self._inputs, "config": dict(config), "labels": {KEY_LABEL: key}}
        self._ledger.asked(key, body)
        try:
            answer = self._http.post("/v1/jobs", json=body, headers={"Idempotency-Key": key})
        except httpx.TransportError as error:
            self._ledger.unanswered(key, repr(error))
            return None
        if answer.is_success:
            job_id: str = answer.json()["id"]
            self._ledger.acknowledged(key, answer.status_code, job_id)
            return job_id
        code = answer.json().get("code", "?")
        self._ledger.refused(key, answer.status_code, code)
        if answer.status_code in PASSING or code == "idempotency-in-flight":
            return self._pause()
        raise ApiError(Problem.model_validate(answer.json()))

    def cancel(self, key: str, job_id: str) -> None:
        self._ledger.cancel(key)

        def ask() -> bool:
            try:
                answer = self._http.post(f"/v1/jobs/{job_id}/cancel")
            except httpx.TransportError:
                return False
            if answer.status_code in PASSING:
                return False
            assert answer.is_success, answer.text
            return True

        wait_for(ask, message=f"{job_id} could not be canceled")

    def _pause(self) -> None:
        self._giving_up.wait(_PAUSE_SECONDS)
