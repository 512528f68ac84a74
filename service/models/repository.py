"""Statements about models."""

from __future__ import annotations

from typing import Any

from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from service import repository
from service.contracts.model import MADE_MODEL
from service.db import db_now
from service.ids import is_id, new_id
from service.models.errors import ModelNotFoundError
from service.pagination import Position
from service.repository import outlined_page
from service.tables import Model, ModelFile
from service.tenancy import owned


def settle(session: Session, model_id: str, **values: Any) -> bool:
    """End the validation of a model: set ``status`` with its summary or problems. False if it had ended before."""
    return repository.settle(session, Model, Model.id == model_id, "validating", values)


def find(session: Session, model_id: str) -> Model | None:
    """The model of any tenant with its files, or None: for workers."""
    return session.get(Model, model_id, populate_existing=True)


def add_files(session: Session, model_id: str, files: list[ModelFile]) -> None:
    """Insert files of a model that validation made; their ``model_id`` is set here."""
    for file in files:
        file.model_id = model_id
    session.add_all(files)
    session.flush()


def first_version(session: Session, model: Model) -> Model:
    """The uploaded model whose graph this one and all its other versions have."""
    while model.skeleton_model_id is not None:
        model = session.get_one(Model, model.skeleton_model_id)
    return model


def create(
    session: Session,
    tenant_id: str,
    *,
    name: str,
    format: str,  # noqa: A002
    files: list[ModelFile],
    skeleton: Model | None = None,
) -> Model:
    """Insert a model in validation, with its files (whose ``model_id`` is set here)."""
    now = db_now()
    statement = (
        insert(Model)
        .values(
            id=new_id("mdl"),
            tenant_id=tenant_id,
            name=name,
            format=format,
            skeleton_model_id=None if skeleton is None else skeleton.id,
            version=1 if skeleton is None else skeleton.version + 1,
            status="validating",
            row_version=1,
            created_at=now,
            updated_at=now,
        )
        .returning(Model)
    )
    model = session.scalars(statement).one()
    for file in files:
        file.model_id = model.id
    session.add_all(files)
    session.flush()
    session.refresh(model, ["files"])
    return model


def get(session: Session, tenant_id: str, model_id: str, *, pointer: str | None = None) -> Model:
    """The tenant's model with its files.

    Raises:
        ModelNotFoundError: the tenant has no such model; carries ``pointer``.
    """
    statement = select(Model).where(Model.id == model_id, owned(Model, tenant_id))
    model = session.scalar(statement) if is_id(model_id, "mdl") else None
    if model is None:
        raise ModelNotFoundError(model_id, pointer=pointer)
    return model


def list_page(
    session: Session, tenant_id: str, *, status: str | None, after: Position | None, limit: int
) -> tuple[list[Model], Position | None]:
    """One page of the tenant's models, newest first; see ``outlined_page``."""
    conditions = [owned(Model, tenant_id)]
    if status is not None:
        conditions.append(Model.status == status)
    return outlined_page(session, Model, conditions, after, limit)


def upload_name(session: Session, model_id: str | None) -> str:
    """The name of the file that a model was uploaded as; the model's own where that says nothing; "" without one."""
    files = session.execute(select(ModelFile.path, ModelFile.is_main).where(ModelFile.model_id == model_id)).all()
    main = next((path for path, is_main in files if is_main), MADE_MODEL)
    if main != MADE_MODEL:
        return str(main)
    made_of = next((path for path, _ in files if path.endswith((".pt2", ".safetensors"))), None)
    return made_of or session.scalar(select(Model.name).where(Model.id == model_id)) or ""
