"""What inspections look like from outside."""

from __future__ import annotations

from service.contracts.errors import Problem
from service.contracts.inspection import Inspection
from service.inspections.schemas import InspectionLinks, InspectionOut
from service.tables import InspectionRow


def etag(row: InspectionRow) -> str:
    """Entity tag: changes whenever the inspection does."""
    return f'"{row.row_version}"'


def inspection_out(row: InspectionRow) -> InspectionOut:
    """The inspection as it is shown."""
    return InspectionOut(
        id=row.id,
        model_id=row.model_id,
        job_id=row.job_id,
        status=row.status,
        config=row.config,
        result=None if row.result is None else Inspection.model_validate(row.result),
        problem=None if row.problem is None else Problem.model_validate(row.problem),
        created_at=row.created_at,
        updated_at=row.updated_at,
        links=InspectionLinks(self=f"/v1/inspections/{row.id}", job=f"/v1/jobs/{row.job_id}"),
    )
