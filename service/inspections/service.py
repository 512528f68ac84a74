"""Inspections: computed by a job once per model and config, and stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from service.audit.service import note
from service.contracts.base import VERSION, read_stored
from service.contracts.compatibility import check_float, check_selected
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import Problem
from service.contracts.graph_view import Inspection
from service.contracts.preparation import fixed_inputs
from service.contracts.targets import TARGET_OPTIONS, unknown_target
from service.deps import AppState
from service.inspections import repository
from service.inspections.schemas import InspectionLinks, InspectionOut, UnknownTargetError
from service.jobs import events, transitions
from service.jobs.transitions import NewJob
from service.models.service import usable
from service.names import repository as names
from service.names.kinds import MODELS
from service.principal import Principal
from service.quarantine import suspects as quarantine
from service.tables import InspectionRow
from service.tables.base import record_of


def aimed_at(config: QuantizationConfig, target: str | None) -> QuantizationConfig:
    """``config`` for the target of the query, where there is one.

    Raises:
        UnknownTargetError: there is no such target; names the nearest.
        InvalidConfigError: the config switches options that the target does not have.
    """
    if target is None:
        return config
    if target not in TARGET_OPTIONS:
        raise UnknownTargetError(
            f"{unknown_target(target)}.", query="target", hint="List all targets with GET /v1/targets."
        )
    return parse_config({**config.model_dump(mode="json"), "target": target}, pointer="/config")


def inspect(
    app: AppState, by: Principal, model_id: str, config: QuantizationConfig, *, notes: Iterable[str] = ()
) -> InspectionRow:
    """The inspection of a model by a config; made by a new job unless it is there or being made.

    Args:
        app: of the process.
        by: who asks.
        model_id: the model, by its id or by a reference.
        config: resolved.
        notes: what to tell in the job's log about the config's translation.

    Raises:
        ModelNotFoundError, ModelNotReadyError, ModelRejectedError: there is no model to inspect.
        ModelQuarantinedError: the model has killed its runner twice.
        AlreadyQuantizedError: the model is quantized already.
        InvalidConfigError: the config does not fit the model.
    """
    # of all that the result depends on, the model aside: the resolved config and the engine
    digest = hashlib.sha256(f"{VERSION}\n{config.model_dump_json()}".encode()).hexdigest()
    with app.database.read() as session:
        model, summary = usable(session, by.tenant_id, model_id)
    check_float(summary, config.preparation, pointer="")
    check_selected(config, summary)
    fixed_inputs(summary.inputs, config.preparation)
    with app.database.write() as session:
        repository.hold(session, model.id)
        # what is known of a ready model does not change; the model may be in quarantine since, or deleted
        quarantine.refuse(
            session, by.tenant_id, quarantine.uploaded(names.by_id(session, MODELS, by.tenant_id, model.id))
        )
        known = repository.lasting(session, model.id, digest)
        if known is not None:
            return known
        job = transitions.submit(
            session,
            NewJob(
                by.tenant_id,
                "inspect_target",
                model_id=model.id,
                config=config.model_dump(mode="json"),
                deadline_seconds=app.settings.job_deadline_seconds,
                request_id=by.request_id,
            ),
        )
        for told in notes:
            events.append(session, job.id, 0, "log", {"level": "info", "message": f"translated config: {told}"})
        row = repository.create(session, job, config_sha256=digest)
        note(session, by, "inspection.create", row.id)
    app.dispatch()
    return row


def get(app: AppState, tenant_id: str, inspection_id: str) -> InspectionRow:
    """The inspection.

    Raises:
        InspectionNotFoundError: the tenant has no such inspection.
    """
    with app.database.read() as session:
        return repository.get(session, tenant_id, inspection_id)


def inspection_out(row: InspectionRow) -> InspectionOut:
    """The inspection as it is shown."""
    return record_of(
        row,
        InspectionOut,
        result=None if row.result is None else read_stored(Inspection, row.result),
        problem=None if row.problem is None else read_stored(Problem, row.problem),
        links=InspectionLinks(self=f"/v1/inspections/{row.id}", job=f"/v1/jobs/{row.job_id}"),
    )
