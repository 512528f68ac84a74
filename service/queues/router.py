"""HTTP routes of queues."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from service.deps import AppDep, PrincipalDep, reading
from service.http import only_parameters
from service.queues import service
from service.queues.schemas import QueueList

router = APIRouter(prefix="/v1/queues", tags=["queues"])


@router.get("", dependencies=[Depends(only_parameters())])
@reading
def list_queues(app: AppDep, principal: PrincipalDep) -> QueueList:
    """List the queues with their queued jobs, running jobs and slots, and with the tenant's own jobs."""
    return QueueList(items=service.queues_of(app, principal.tenant_id))
