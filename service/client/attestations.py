"""Attestations: what the service has signed of a job, and the keys that it signs by."""

from __future__ import annotations

from service.attestations.schemas import SigningKeyList, SigningKeyOut
from service.client.connection import Connection, Noun, id_of
from service.client.driving import Call
from service.client.steps import Steps


class AttestationCalls(Connection):
    """Calls of ``/v1/jobs/ID/attestation`` and ``/v1/keys/signing``."""

    @Call
    def attestation(self, job: Noun | str) -> Steps[bytes]:
        """The attestation of a succeeded job: a DSSE envelope as one line of JSON, to be kept beside its model."""
        return (yield from self._request("GET", f"/v1/jobs/{id_of(job)}/attestation")).content

    @Call
    def signing_keys(self) -> Steps[list[SigningKeyOut]]:
        """The public keys by which the service signs, or has signed, the newest first."""
        return SigningKeyList.model_validate((yield from self._json("GET", "/v1/keys/signing"))).items
