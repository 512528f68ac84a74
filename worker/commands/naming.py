"""Errors of models and datasets name the file of the command line that they are about, and its option."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.client.errors import ApiError
from service.contracts.errors import DatasetError, ModelError, QuantmillError, StateError

# Roles as the engine tells them (``of_role``), and where the command line takes their files.
_OPTIONS = {
    "reference model": "--reference",
    "calibration dataset": "--calibration",
    "evaluation dataset": "--evaluation",
}
_SUBJECT = re.compile(r"^[Tt]he (?:(?:model|dataset) file|file|model|dataset) (?=(?:is|cannot|has|contains|holds)\b)")


@contextmanager
def naming_files(
    model: Path, *, reference: Path | None = None, calibration: Path | None = None, evaluation: Path | None = None
) -> Iterator[None]:
    """Have what is wrong with one of these files name it; the weights of --state name themselves."""
    files = {
        "model": model,
        "reference model": reference,
        "calibration dataset": calibration,
        "evaluation dataset": evaluation,
    }
    try:
        yield
    except (ModelError, DatasetError, ApiError) as error:
        role = error.where.pop("role", "model" if isinstance(error, ModelError) else None)
        path = None if role is None else files.get(role)
        if path is not None and not isinstance(error, StateError):
            _name(error, role, path)
        raise


def _name(error: QuantmillError, role: str, path: Path) -> None:
    """Put the file in place of "the file", or where there is no such word, among the places of the error."""
    if isinstance(error, ApiError):  # its pointers are into requests that the user has not written
        error.errors = tuple(one.model_copy(update={"pointer": ""}) for one in error.errors)
    option = _OPTIONS.get(role)
    told = str(path) if option is None else f"{path} ({option})"
    detail, replaced = _SUBJECT.subn(lambda _: f"{role} {told} ", error.detail)
    if not replaced:
        error.where[role] = told
        return
    error.errors = tuple(
        one.model_copy(update={"message": detail}) if one.message == error.detail else one for one in error.errors
    )
    error.detail = detail
