"""HTTP routes of queues."""

from __future__ import annotations

from fastapi import APIRouter, Depends

from service.deps import AppDep, get_principal, reading
from service.http import only_parameters
from service.queues import service
from service.queues.schemas import QueueList

router = APIRouter(prefix="/v1/queues", tags=["queues"])


@router.get("", dependencies=[Depends(get_principal), Depends(only_parameters())])
@reading
def list_queues(app: AppDep) -> QueueList:
    """List the queues with their queued jobs, running jobs and slots."""
    return QueueList(items=service.all_queues(app))
