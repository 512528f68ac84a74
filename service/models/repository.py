"""SQL statements for models."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from service import repository
from service.contracts.model import MADE_MODEL
from service.ids import new_id
from service.names.repository import next_version
from service.tables import Model, ModelFile


def find(session: Session, model_id: str) -> Model | None:
    """The model of any tenant with its files, or None: for workers."""
    return session.get(Model, model_id, populate_existing=True)


def add_files(session: Session, tenant_id: str, model_id: str, files: list[ModelFile]) -> None:
    """Insert files of a model; whose they are is set here."""
    for file in files:
        file.tenant_id, file.model_id = tenant_id, model_id
    session.add_all(files)
    session.flush()


def graph_source(session: Session, model: Model) -> Model:
    """The uploaded model whose graph this one and all others of new weights for it have."""
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
    tags: dict[str, str] | None = None,
    description: str | None = None,
) -> Model:
    """Insert a model in validation, the next version of its name, with its files; see ``add_files``."""
    model = repository.add(
        session,
        Model,
        id=new_id("mdl"),
        tenant_id=tenant_id,
        name=name,
        format=format,
        skeleton_model_id=None if skeleton is None else skeleton.id,
        version=next_version(session, tenant_id, "model", name),
        status="validating",
        tags=tags or {},
        description=description,
    )
    add_files(session, tenant_id, model.id, files)
    session.refresh(model, ["files"])
    return model


def upload_name(session: Session, model_id: str | None) -> str:
    """The name of the file that a model was uploaded as; the model's own where that says nothing; "" without one."""
    files = session.execute(select(ModelFile.path, ModelFile.is_main).where(ModelFile.model_id == model_id)).all()
    main = next((path for path, is_main in files if is_main), MADE_MODEL)
    if main != MADE_MODEL:
        return str(main)
    made_of = next((path for path, _ in files if path.endswith((".pt2", ".safetensors"))), None)
    return made_of or session.scalar(select(Model.name).where(Model.id == model_id)) or ""
