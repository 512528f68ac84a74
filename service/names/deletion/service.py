"""Deleting models and datasets."""

from __future__ import annotations

from sqlalchemy.orm import Session

from service.audit.service import note
from service.contracts.errors import InvalidRequestError, QuantmillError
from service.contracts.references import parse
from service.deps import AppState
from service.ids import is_id
from service.names.deletion import repository
from service.names.kinds import Kind, Named
from service.names.service import identify
from service.principal import Principal


def delete(app: AppState, by: Principal, kind: Kind[Named], text: str) -> None:
    """Delete a model or a dataset that nothing needs; one that is deleted stays so.

    Its files are collected once nothing else names them. Jobs that ran on it keep what they have made, and its version
    is never given again.

    Raises:
        NounNotFoundError: the tenant never had one that is called so.
        InvalidRequestError: an alias or ``latest``, which would be another one the next time.
        NounInUseError: something needs it; says what.
    """
    reference = None if is_id(text, kind.prefix) else parse(text)
    if reference is not None and reference.word is not None:
        raise InvalidRequestError(
            f"{text!r} may stand for another {kind.word} the next time.",
            path_parameter=f"{kind.word}_id",
            hint="Name what is to be deleted by its id, or by NAME@VERSION.",
        )
    if reference is None and not is_id(text, kind.prefix):
        raise _missing(app, by, kind, text)
    with app.database.write() as session:
        row = repository.hold(session, kind, by.tenant_id, reference or text)
        if row is not None and row.deleted_at is None:
            _delete(session, by, kind, row)
    if row is None:
        raise _missing(app, by, kind, text)


def _delete(session: Session, by: Principal, kind: Kind[Named], row: Named) -> None:
    needs = repository.needs(session, kind, by.tenant_id, row)
    if needs.count:
        raise kind.in_use(row.id, needed_by=needs.first, count=needs.count)
    repository.mark(session, row)
    note(session, by, f"{kind.word}.delete", row.id)


def _missing(app: AppState, by: Principal, kind: Kind[Named], text: str) -> QuantmillError:
    """Says what there is instead; looked for outside of any transaction that others wait for."""
    try:
        identify(app, kind, by.tenant_id, text)
    except QuantmillError as error:
        return error
    return kind.not_found(text)
