"""Attestations as files: where they lie, and how they get there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from worker.commands.report_files import write_whole

if TYPE_CHECKING:
    from service.client import Client

# What stands behind the name of a file in the name of its attestation.
SUFFIX = ".intoto.jsonl"
# Why a service signs nothing; its jobs are good all the same.
_UNSIGNED = ("signing-unavailable", "signing-key-unreadable")
_NOT_FOUND = 404


def attestation_path(file: Path) -> Path:
    """Where the attestation of ``file`` lies."""
    return file.with_name(file.name + SUFFIX)


def download_attestation(client: Client, job_id: str, path: Path) -> bool:
    """Write what the service has signed of a job to ``path``; where it signs nothing, say so and give False.

    Raises:
        ApiError: the service refused for another reason.
    """
    from service.client import ApiError

    try:
        data = client.attestation(job_id)
    except ApiError as error:
        if error.code not in _UNSIGNED and error.status != _NOT_FOUND:  # older services know no attestations
            raise
        typer.echo(f"There is no attestation: {error.detail}", err=True)
        return False
    write_whole(path, data + b"\n")
    typer.echo(f"attested  {path}")
    return True
